"""The status of a node with many peers: it counts all, lists some, and says so."""

import asyncio
import json
from functools import cache

import pytest

from p2pfl.node.doctor import check_peers
from p2pfl.node.status import endpoints
from p2pfl.node.status.reader import StatusFile
from p2pfl.node.status.snapshot import MOST_PEERS, exchange_state, shown_peers
from p2pfl.node.status.text import describe
from p2pfl.sim.simulation.clock import run
from tests.support.federation import Federation
from tests.support.logs import log_to


@cache
def status_of(count):
    """Return the status of a node with `count` peers, none of which is connected."""

    async def main():
        names = ["a", *(f"p{k:04}" for k in range(count))]
        return exchange_state(Federation(names).exchange("a"))

    state = json.loads(json.dumps(run(main())))
    return {"name": "a", "state": "running", "federation": "home", "pid": 1, "history": [], **state}


def test_status_lists_bounded_number_of_peers_and_counts_all():
    state = status_of(MOST_PEERS + 44)
    assert len(state["peers"]) == MOST_PEERS
    assert state["peer_counts"] == {"total": MOST_PEERS + 44, "linked": 0, "states": {"connecting": MOST_PEERS + 44}}
    lines = describe(state)
    assert "44 more peers not shown: connecting 44" in lines[-1]
    assert any(f"1 of {MOST_PEERS + 45} connected" in line for line in lines)
    assert check_peers(state)[-1].result == "44 more peers not shown: connecting 44"


def test_small_status_lists_all_peers():
    state = status_of(3)
    assert [peer["name"] for peer in state["peers"]] == ["p0000", "p0001", "p0002"]
    assert "not shown" not in "\n".join(describe(state))


def test_peers_that_need_attention_are_listed_first():
    conditions = {f"p{k:04}": ("not connected", "") for k in range(1000)}
    conditions |= {"p0900": ("suspected", "silent"), "p0950": ("connected", ""), "p0999": ("left out", "score")}
    shown = shown_peers(conditions)
    assert {"p0900", "p0950", "p0999"} < set(shown)
    assert len(shown) == MOST_PEERS


def test_metrics_count_all_peers():
    pytest.importorskip("prometheus_client")
    text = endpoints.text(status_of(MOST_PEERS + 44)).decode()
    assert f'p2pfl_peers{{state="connecting"}} {MOST_PEERS + 44}.0' in text
    assert text.count('p2pfl_peer_state{peer="') <= 10 * MOST_PEERS


def test_status_that_takes_long_to_write_is_written_less_often(tmp_path):
    async def main():
        loop, written, busy = asyncio.get_running_loop(), [], [0.0]

        def make():
            written.append(loop.time())
            busy[0] += 0.1  # a tenth of a second each
            return {"history": []}

        file = StatusFile(tmp_path / "status.json", log_to([]), lambda: loop.time() + busy[0], make)
        for _ in range(300):
            file.write(0.1)
            await asyncio.sleep(0.1)
        assert len(written) <= 30.0 / (20 * 0.1) + 2
        file.write()  # the end of the node, for example
        assert written[-1] == loop.time()

    run(main())
