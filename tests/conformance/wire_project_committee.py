"""Checks of committees and certificates, with the code that nodes run."""

from p2pfl.node.coordination.election_runner import committee_electorate
from p2pfl.protocols.election import Term
from p2pfl.protocols.term_certificates import check_certificate as check
from p2pfl.protocols.term_certificates import decode


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


CHECKS = {"term certificate": check_certificate}
