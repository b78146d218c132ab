"""Folders restored from an older copy, and two processes with one key."""

import asyncio
import shutil
import signal
import time

import pytest

from p2pfl.node.peering.control_messages import IncarnationConflictError
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import HEADER_SIZE, OVERHEAD, SESSIONS, FrameSigner, FrameVerifier
from tests.support.loopback_nodes import SOON, folders, honest, until
from tests.support.processes import PATIENCE, processes

FEDERATION, LAYOUT, SESSION = bytes(range(16)), bytes(16), bytes([7]) * 16
ALICE, BOB = Identity.from_seed(bytes([1]) * 32), Identity.from_seed(bytes([2]) * 32)


def frame(signer, session=SESSION):
    return b"".join(bytes(part) for part in signer.seal(m.Ping(1), BOB.public, session=session))


def signer(incarnation):
    return FrameSigner(ALICE, FEDERATION, LAYOUT, incarnation)


def test_signer_detects_own_frame_of_later_incarnation():
    later = frame(signer(9))[:OVERHEAD]
    assert signer(5).foreign(later) == (9, 0)
    assert signer(10).foreign(later) is None


def test_signer_detects_frame_of_concurrent_copy():
    original, copy = signer(5), signer(5)
    assert original.foreign(frame(original)[:OVERHEAD]) is None
    assert copy.foreign(frame(original)[:OVERHEAD]) == (5, 0)


def test_signer_learns_round_of_its_newest_model():
    original = signer(9)
    update = m.ModelUpdate(1, 12, "trained", 5, False, 0.0)
    model = b"".join(bytes(part) for part in original.seal(update, BOB.public, session=SESSION))
    assert signer(5).foreign(frame(original)[:OVERHEAD] + model[:OVERHEAD]) == (9, 12)
    assert signer(10).foreign(frame(original)[:OVERHEAD] + model[:OVERHEAD]) is None


@pytest.mark.slow
def test_signer_ignores_frames_of_forgotten_sessions():
    original = signer(5)
    first = frame(original)[:OVERHEAD]
    for k in range(SESSIONS):
        frame(original, k.to_bytes(16, "big"))
    assert original.foreign(first) is None


@pytest.mark.parametrize("change", ["another key", "another byte", "another federation", "shorter"])
def test_signer_rejects_evidence_it_did_not_sign(change):
    evidence = {
        "another key": frame(FrameSigner(BOB, FEDERATION, LAYOUT, 9))[:OVERHEAD],
        "another byte": frame(signer(9))[:HEADER_SIZE] + bytes(64),
        "another federation": frame(FrameSigner(ALICE, bytes(16), LAYOUT, 9))[:OVERHEAD],
        "shorter": frame(signer(9))[:-1],
    }[change]
    with pytest.raises(ProtocolError):
        signer(5).foreign(evidence)


def test_verifier_keeps_newest_frame_of_sender():
    verifier, one = FrameVerifier({"alice": ALICE.public}, BOB.public, FEDERATION, 1000), signer(3)
    assert verifier.newest(ALICE.public) == b""
    first, second = frame(one), frame(one)
    verifier.open(second, SESSION)
    verifier.open(first, SESSION)
    assert verifier.newest(ALICE.public) == second[:OVERHEAD]


@pytest.mark.slow
def test_node_of_restored_folder_detects_its_later_incarnation(tmp_path):
    members = folders(tmp_path, "alice", "bob")
    old = tmp_path / "backup"
    shutil.copytree(members["bob"], old)

    async def main():
        async with honest(members["alice"]) as alice:
            for _ in range(3):
                async with honest(members["bob"]) as bob:
                    await until(lambda bob=bob: bob.exchange.peers["alice"].introduced)
            shutil.rmtree(members["bob"])
            shutil.copytree(old, members["bob"])
            with pytest.raises(ExceptionGroup) as group:
                async with honest(members["bob"]):
                    await asyncio.sleep(SOON)
            (conflict,) = group.value.exceptions
            assert isinstance(conflict, IncarnationConflictError)
            assert conflict.incarnation == 3
            assert alice.rejected["replay"] >= 1

    asyncio.run(main())


@pytest.mark.slow
def test_restored_folder_continues_and_one_of_two_copies_ends(tmp_path):
    toml = 'rounds = 1000000\ndeadline = 5.0\ntask = {name = "concept-shift"}\npolicy = {name = "random"}\n'
    with processes(tmp_path, ("alice", "bob"), toml) as federation:
        bob, old, copy = federation.folders["bob"], tmp_path / "backup", tmp_path / "copy"

        def with_bob():
            return any(peer["state"] == "connected" for peer in federation.status("alice")["peers"])

        def stop_bob():
            federation.signal("bob", signal.SIGTERM)
            return federation.wait("bob")["bob"]

        federation.start("alice")
        for _ in range(2):
            shutil.copytree(bob, old, dirs_exist_ok=True)
            federation.start("bob")
            federation.until(with_bob, "bob is connected")
            stop_bob()
            federation.until(lambda: not with_bob(), "bob is gone")
        shutil.rmtree(bob)
        shutil.copytree(old, bob)
        federation.start("bob")
        federation.until(with_bob, "bob is connected")
        assert "was restored from an older copy" in stop_bob()

        shutil.copytree(bob, copy)
        federation.folders["copy"] = copy
        federation.start("bob")
        federation.until(with_bob, "bob is connected")
        federation.start("copy", changes=("listen=127.0.0.1:0",))
        ended, deadline = [], time.monotonic() + PATIENCE
        while not ended:
            assert time.monotonic() < deadline, [federation.status(name) for name in federation.running]
            ended = [name for name in ("bob", "copy") if federation.running[name].poll() is not None]
            time.sleep(0.02)  # of real time: these are real processes
        assert "another process uses the key of this node" in federation.printed(ended[0])
        process = federation.running.pop(ended[0])
        assert process.returncode == 2
        federation.until(with_bob, "the other one is connected")
