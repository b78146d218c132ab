"""The command `p2pfl-node federation proofs`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from p2pfl.node.cli.options import add_folder
from p2pfl.system.console import add_command
from p2pfl.system.shared_options import add_output, print_answer


def add_proofs(federations: Any) -> None:
    """Add `proofs` to the commands of `federation`."""
    proofs = add_command(
        federations,
        "proofs",
        "verify and show the proofs that members have sent different models of one round",
        "p2pfl-node federation proofs alice",
        "p2pfl-node federation proofs alice --json",
    )
    add_folder(proofs)
    add_output(proofs)
    proofs.set_defaults(do=_proofs)


def _proofs(options: argparse.Namespace) -> int:
    found = stored_proofs(options.folder)
    lines = [f"{row['name']} has signed two models of round {row['round']} ({row['stage']})" for row in found]
    print_answer(options, "\n".join(lines) or "no member is known to have signed two models of one round", {"proofs": found})
    return 0


def stored_proofs(folder: Path) -> list[dict[str, Any]]:
    """Return the proofs in the checkpoint of a node that hold with the keys of its membership log; no network is needed.

    Raises:
        ConfigurationError: the node belongs to no federation, or its checkpoint cannot be read.
    """
    from p2pfl.node.checkpoint import FileStore
    from p2pfl.node.federation.membership_file import member_of
    from p2pfl.node.folder import config as folders
    from p2pfl.protocols.wire.signed_models import read_proof

    membership = member_of(folder)
    names = {member.key: name for name, member in membership.members.items()}
    checkpoint = FileStore(folder / folders.CHECKPOINT).load()
    found = []
    for proof in [] if checkpoint is None else checkpoint.conduct.proofs:
        one, _ = read_proof(proof, membership.federation)
        if one.sender in names:
            row = {"name": names[one.sender], "key": one.sender.hex(), "round": one.round, "stage": one.stage}
            found.append(row | {"proof": proof.hex()})
    return found
