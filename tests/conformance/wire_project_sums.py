"""Checks of secure sums, with the code that nodes run."""

import msgspec
import numpy as np

from p2pfl.protocols import secure_sums as sums
from p2pfl.protocols.secure_sums import Announcement, SumCollector, SumContext, SumMember, read_announcement
from tests.conformance.wire_keys import KEYS


def context(given):
    return SumContext(bytes.fromhex(given["federation"]), *given["term"], given["round"])


def check_announcement(given):
    found = read_announcement("alice", given["n_samples"], bytes.fromhex(given["bytes"]))
    found.check(context(given), bytes.fromhex(given["key"]))
    found.check_keys()
    return {key: getattr(found, key).hex() for key in ("sealing", "masking", "commitment", "signature")}


def check_member(given):
    """Answer the steps with given secrets. The shares of them are no part of the result, because they are random."""
    secrets = [bytes.fromhex(given[key]) for key in ("sealing", "masking", "self_seed")]
    voters = {name: bytes.fromhex(key) for name, key in given["voters"].items()}
    member = SumMember(
        given["me"],
        KEYS[given["me"]],
        context(given),
        np.array(given["values"], np.float32),
        given["n_samples"],
        keys=voters.get,
        threshold=given["threshold"],
        source=lambda size: secrets.pop(0) if secrets else bytes(size),
    )
    answers = []
    for step, payload in given["steps"]:
        answer = member.answer(step, bytes.fromhex(payload))
        if step == "open":
            own = sorted(given["voters"]).index(given["me"])
            opened = msgspec.msgpack.decode(answer)
            answers.append([[owner, share.hex()] for owner, share in opened if owner != own])
        else:
            answers.append(None if step == "roster" else answer.hex())
    return {"announcement": member.announcement.encode().hex(), "answers": answers}


def check_sum(given):
    roster = msgspec.msgpack.decode(bytes.fromhex(given["roster"]), type=list[Announcement])
    names = [each.name for each in roster]
    collector = SumCollector(context(given), roster, given["threshold"], given["size"])
    assert collector.request("roster", names[0]).hex() == given["roster"]
    for place, shares in given["given"]:
        collector.take("roster", names[place], b"", bytes.fromhex(shares))
    collector.begin("shares")
    for place, masked in given["masked"]:
        collector.take("shares", names[place], b"", bytes.fromhex(masked))
    for place, opened in given["opened"]:
        collector.take("open", names[place], b"", bytes.fromhex(opened))
    result = collector.result()
    return {"mean": None, "samples": None} if result is None else {"mean": result[0].tolist(), "samples": result[1]}


CHECKS = {"announcement": check_announcement, "sum member": check_member, "sum": check_sum}
assert sums.COMPLETE == 128  # of the reader
