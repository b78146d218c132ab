"""Frames of the earlier version of the wire protocol: a node refuses each, names both versions, and continues."""

import asyncio
import json
from pathlib import Path

import pytest

from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.wire.envelope import EARLIER, VERSION
from tests.conformance import wire_project, wire_reader
from tests.conformance.wire_types import RefusedError
from tests.support.loopback_nodes import Intruder, folders, honest, until

RECORDED = json.loads((Path(__file__).parent / "wire_5.json").read_text())
GIVEN, FRAMES = RECORDED["given"], RECORDED["frames"]


@pytest.mark.parametrize("check", [wire_reader.CHECKS["frame"], lambda given: wire_project.run("frame", given)])
def test_frames_of_earlier_version_are_refused_by_their_version(check):
    for name, frame in FRAMES.items():
        with pytest.raises(RefusedError) as refused:
            check(GIVEN | {"frame": frame})
        assert refused.value.cause == "version", name


def test_recorded_version_is_the_one_before():
    assert RECORDED["protocol"] == EARLIER - 1 == VERSION - 2


def test_node_names_versions_of_earlier_peer_and_serves_others(tmp_path):
    members = folders(tmp_path, "alice", "bob", "carol")

    async def main():
        async with honest(members["alice"]) as alice, honest(members["bob"]) as bob:
            await until(lambda: alice.exchange.peers["bob"].introduced)
            carols = Identity.load(members["carol"] / "key.pem"), Membership(alice.log.file, alice.log.encode())
            async with Intruder(*carols) as carol:
                link = await carol.dial(alice)
                link.send([bytes.fromhex(FRAMES["hello"])])
                await until(lambda: alice.rejected)
                assert alice.rejected == {"version": 1}
                reason = alice.exchange.view.suspected["carol"]
                assert reason == f"the peer has wire version 5, this node {EARLIER} and {VERSION}"
                (update,) = await bob.exchange.fetch(["alice"], 1, "trained")
                assert update.params.tobytes() == alice.model.tobytes()

    asyncio.run(main())
