"""The command `federation proofs`."""

import json

from p2pfl.node.checkpoint import Checkpoint, FileStore
from p2pfl.node.cli.main import main
from p2pfl.node.conduct import ConductState
from p2pfl.node.federation.membership_file import member_of
from p2pfl.node.folder import config as names
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import OVERHEAD, FrameSigner, Payload
from tests.support.loopback_nodes import folders


def proof_of(folder):
    """Return two signed models of round 7 of a node."""
    identity = Identity.load(folder / names.KEY)
    signer = FrameSigner(identity, member_of(folder).federation, bytes(16), 1)
    update = m.ModelUpdate(1, 7, "trained", 5, False, 0.0)
    frames = [signer.seal(update, bytes(32), Payload.of(content)) for content in (b"1", b"2")]
    return b"".join(b"".join(map(bytes, frame))[:OVERHEAD] for frame in frames)


def checkpoint_with(*proofs):
    return Checkpoint(
        name="alice",
        seed=0,
        layout=b"",
        round=9,
        params=b"",
        early_stopping={},
        unevaluated={},
        unevaluated_round=0,
        policy="",
        policy_state=b"",
        outbox=[],
        final=False,
        conduct=ConductState(proofs=list(proofs)),
    )


def test_proofs_shows_verified_proofs(tmp_path, capsys):
    members = folders(tmp_path, "alice", "bob")
    assert main(["federation", "proofs", str(members["alice"])]) == 0
    assert "no member is known to have signed two models of one round" in capsys.readouterr().out
    proof = proof_of(members["bob"])
    FileStore(members["alice"] / names.CHECKPOINT).save(checkpoint_with(proof))
    assert main(["federation", "proofs", str(members["alice"])]) == 0
    assert capsys.readouterr().out == "bob has signed two models of round 7 (trained)\n"
    assert main(["federation", "proofs", str(members["alice"]), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["proofs"]
    assert (row["name"], row["round"], bytes.fromhex(row["proof"])) == ("bob", 7, proof)
