"""Node processes whose federation gets more rounds after they have finished."""

import signal
import tomllib

import pytest

from p2pfl.node.federation import membership_changes
from p2pfl.sim.scenario.scenario import resolve
from tests.support.processes import processes
from tests.support.simulated import run

NAMES = ("node-0", "node-1", "node-2")
RULES = 'deadline = 30.0\nrobust = "none"\n[task]\nname = "concept-shift"\n[policy]\nname = "random"\n'


@pytest.mark.slow
def test_ended_processes_match_simulation_of_all_rounds(tmp_path):
    """Only the first node knows of the extension when the processes start again."""
    with processes(tmp_path, NAMES, "rounds = 4\nmembers = 3\n" + RULES) as federation:
        federation.start()
        federation.wait()
        assert [federation.checkpoint(name).round for name in NAMES] == [4, 4, 4]
        membership_changes.extend(federation.folders["node-0"], 7)
        federation.start()
        printed = federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0, 0, 0]
        assert "the federation has 7 rounds now; continuing after round 4" in printed["node-1"]
        assert "waiting for members: 1 of 3 (for at most" not in printed["node-0"], "it waits as before round 1"
        params = {name: federation.checkpoint(name).params for name in NAMES}
        statuses = {name: federation.status(name) for name in NAMES}
    toml = f'nodes = 3\ntrainer = "one-by-one"\nrounds = 7\n{RULES}'
    simulated = run(resolve(tomllib.loads(toml), [], "same", ".").runs[0])
    for name in NAMES:
        assert (statuses[name]["round"], statuses[name]["rounds"], statuses[name]["state"]) == (7, 7, "finished")
        assert [row["round"] for row in statuses[name]["history"]] == list(range(1, 8))
        assert params[name] == simulated.nodes[name].me.whole.tobytes()


@pytest.mark.slow
def test_serving_processes_continue_and_absent_one_follows(tmp_path):
    with processes(tmp_path, NAMES, "rounds = 4\n" + RULES) as federation:
        federation.start(until_done=False)
        serving = lambda *names: all(federation.status(name)["state"] == "serving" for name in names)  # noqa: E731
        federation.until(lambda: serving(*NAMES), "all serve")
        federation.signal("node-2", signal.SIGKILL)
        federation.wait("node-2")
        membership_changes.extend(federation.folders["node-0"], 9)
        for name in ("node-0", "node-1"):
            federation.until_round(name, 9)
        federation.until(lambda: serving("node-0", "node-1"), "two nodes serve again")
        federation.start("node-2")  # the others have finished, and do not need it: it must not end before it has heard
        federation.wait("node-2")
        assert federation.status("node-2")["round"] == 9
        assert federation.checkpoint("node-2").round == 9
        federation.signal("node-0", signal.SIGINT)
        assert federation.wait("node-0")["node-0"].splitlines()[-1] == "stopping: this node no longer serves its peers"
        assert federation.running["node-0"].returncode == 0
