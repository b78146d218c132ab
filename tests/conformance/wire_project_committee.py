"""Checks of committees and certificates, with the code that nodes run."""

from math import prod

from p2pfl.node.coordination.election_runner import committee_electorate
from p2pfl.node.coordination.groups import read_group
from p2pfl.protocols.election import Term
from p2pfl.protocols.term_certificates import check_certificate as check
from p2pfl.protocols.term_certificates import decode
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import Opened


def committee_of(log):
    chosen = committee_electorate(log)
    return {
        "version": chosen.membership_version,
        "members": {name: key.hex() for name, key in sorted(chosen.keys.items())},
        "eligible": list(chosen.eligible),
        "earlier": [[each.membership_version, each.majority, sorted(each.members)] for each in chosen.earlier],
    }


def check_certificate(given):
    certificate = decode(bytes.fromhex(given["bytes"]))
    check(
        certificate,
        Term(*given["term"]),
        federation=bytes.fromhex(given["federation"]),
        committee={name: bytes.fromhex(key) for name, key in given["committee"].items()},
        eligible=tuple(given["eligible"]),
    )
    return {"coordinator": certificate.coordinator}


def check_group(given):
    message = m.GroupMean(1, 4, 5, 2)
    opened = Opened("bob", message, memoryview(bytes.fromhex(given["bytes"])), 1)
    size = sum(prod(shape) for shape in given["tensors"])
    found = read_group("bob", opened, message, size, given["group"].get)
    return {"params": found.params.tolist(), "samples": found.samples, "n_samples": found.n_samples}


CHECKS = {"term certificate": check_certificate, "group mean": check_group}
