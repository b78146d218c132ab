"""Reader of committees and certificates of terms as in docs/wire-protocol.md."""

from __future__ import annotations

import msgpack

from tests.conformance.wire_coordination import models
from tests.conformance.wire_models import floats, follows
from tests.conformance.wire_types import B32, B64, U32, array_of, expect, map_of, read, signed, structure, text

TERM = {"membership_version": U32, "term": U32}
MESSAGES = {kind: structure(TERM) for kind in ("signed_vote", "term_certificate", "which_term", "term_over")}
MESSAGES["group_mean"] = structure({"request": U32, "round": U32, **TERM})
NAME = text(64, 1)
CERTIFICATE = structure({"coordinator": NAME, "votes": map_of(NAME, B64, 9)})


class Committees:
    """Committees by the entries of a log."""

    def __init__(self, size):
        self.size, self.named, self.found = size, [], []  # found: (version, {name: key}), the present one last

    def follow(self, version, members):
        """Follow an entry, after which there are `members`: (key, role) by name, in the order of their admission."""
        if self.size:
            first = self.first(members)
            if not self.found or self.found[-1][1] != first:
                self.begin(version, first)

    def first(self, members):
        voters = [name for name in members if members[name][1] != "observer"]
        eligible = [name for name in voters if members[name][1] == "coordinator-eligible"]
        order = dict.fromkeys([*(name for name in self.named if name in members), *eligible, *voters])
        return {name: members[name][0] for name in [*order][: self.size]}

    def begin(self, version, first):
        if self.found and len(self.found[0][1]) < self.size:
            self.found = []
        self.found.append((version, first))

    def appoint(self, version, members, keys, lost):
        voters = {key: name for name, (key, role) in members.items() if role != "observer"}
        expect(self.size and keys and len(set(keys)) == len(keys) and set(keys) <= set(voters), "membership")
        expect(len(keys) == min(self.size, len(voters)), "membership")
        self.named = [voters[key] for key in keys]
        if lost:
            self.found = []
        self.begin(version, self.first(members))


def committee_of(log):
    """Return the present committee of a log, and the earlier ones with those that are still members."""
    *before, (version, members) = log.committees.found
    earlier = []
    for number, those in before:
        present = sorted(name for name, key in those.items() if log.members.get(name, (b"",))[0] == key)
        earlier.append([number, len(those) // 2 + 1, present])
    eligible = [name for name in members if log.members[name][1] == "coordinator-eligible"]
    return {
        "version": version,
        "members": {name: key.hex() for name, key in sorted(members.items())},
        "eligible": sorted(eligible or members),
        "earlier": earlier,
    }


def check_certificate(given):
    data, term = bytes.fromhex(given["bytes"]), given["term"]
    expect(len(data) <= 2048, "malformed")
    said = read(data, CERTIFICATE)
    expect(said["coordinator"] in given["eligible"], "election")
    committee = {name: bytes.fromhex(key) for name, key in given["committee"].items()}
    expect(set(said["votes"]) <= set(committee), "election")
    expect(len(said["votes"]) > len(committee) // 2, "election")
    content = msgpack.packb([bytes.fromhex(given["federation"]), *term, committee[said["coordinator"]]])
    for name, signature in said["votes"].items():
        expect(signed(committee[name], signature, b"p2pfl term 1\0" + content), "election")
    return {"coordinator": said["coordinator"]}


KEYS_OF_COMMITTEE = array_of(B32, 9)


def pair(value):
    expect(type(value) is list and len(value) == 2, "malformed")
    return NAME(value[0]), U32(value[1])


SAMPLES = array_of(pair, 65536)


def check_group(given):
    """Read the mean of a group: the model, and the samples of its members."""
    (params,), rest = models(given, 1, bytes.fromhex(given["bytes"]))
    pairs = follows(rest, SAMPLES)
    expect(len(dict(pairs)) == len(pairs), "malformed")
    values = floats(params)
    expect(pairs, "malformed")
    known = given["group"]
    expect(all(name in known for name, _ in pairs), "differs")
    weight = min(sum(samples for _, samples in pairs), sum(known[name] for name, _ in pairs))
    return {"params": values, "samples": dict(pairs), "n_samples": weight}


CHECKS = {"term certificate": check_certificate, "group mean": check_group}
