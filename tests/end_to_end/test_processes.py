"""Node processes over TCP: same results as simulated, and recovery after kills, stops and silence."""

import signal
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

from p2pfl.node.cli.export import export
from p2pfl.node.federation.membership_file import load_federation
from p2pfl.node.peering.peers import KINDS
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.topologies.rings import RingRule
from tests.support.depth import deep, spread
from tests.support.processes import processes
from tests.support.simulated import run

NAMES = [f"node-{k}" for k in range(5)]

RUNS = {  # the task, the policy, and other settings
    "dac, sequential, scored by peers": (
        'name = "concept-shift"',
        'name = "dac"\nneighbours = 2\nsimilarity = "inverse-loss"\nscore_on = "peer"\nschedule = "sequential"',
        "",
    ),
    "dac, digits": (
        'name = "digits"\nlabels = 4\nsamples = 30',
        'name = "dac"\nneighbours = 3\nsimilarity = "cosine-gradients"',
        "",
    ),
    "random": ('name = "concept-shift"', 'name = "random"\nneighbours = 3', ""),
    "random, top-k": (
        'name = "digits"\nlabels = 4\nsamples = 30',
        'name = "random"\nneighbours = 3',
        'codec = { name = "top-k", share = 0.1 }\n',
    ),
    "mosaic, fragments": ('name = "digits"\nlabels = 4\nsamples = 30', 'name = "mosaic"\nreceivers = 2', ""),
    "random, private heads": ('name = "digits"\nlabels = 4\nsamples = 30\nprivate = "head"', 'name = "random"', ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", spread(RUNS, 2))
def test_processes_match_simulator_bit_for_bit(tmp_path, options):
    """Five processes and a simulation with the same seed give identical models and identical traffic."""
    task, policy, codec = RUNS[options]
    robust = "median" if "fragments" in options else "median-clip"
    settings = f'rounds = 6\nseed = 3\ndeadline = 60.0\nrobust = "{robust}"\n{codec}'
    with processes(tmp_path, NAMES, f"{settings}[task]\n{task}\n[policy]\n{policy}\n") as federation:
        federation.start()
        federation.wait()
        assert [p.returncode for p in federation.running.values()] == [0] * 5
        checkpoints = {name: federation.checkpoint(name) for name in NAMES}
        statuses = {name: federation.status(name) for name in NAMES}

    toml = f'nodes = 5\ntrainer = "one-by-one"\n{settings}[task]\n{task}\n[policy]\n{policy}\n'
    simulated = run(resolve(tomllib.loads(toml), [], "same", ".").runs[0])
    assert simulated.expired == 0
    for name in NAMES:
        assert statuses[name]["deadlines_expired"] == 0
        assert statuses[name]["rejected"] == {}
        node = simulated.nodes[name]
        assert checkpoints[name].params == node.me.whole.tobytes()
        if not {"top-k", "dac", "fragments"} & {*options.split(", ")}:  # there the traffic consists of whole models
            received = statuses[name]["traffic"]["received"]
            assert received["update"] == received["models"] * (OVERHEAD + 4 * node.me.params.size) > 0
        assert checkpoints[name].early_stopping["best"] == node.early_stopping.best.tobytes()
        counts = node.exchange.traffic.as_dict()
        for way in ("sent", "received"):
            for kind in ("models", *KINDS):
                assert statuses[name]["traffic"][way][kind] == counts[way][kind], (name, way, kind)
        assert statuses[name]["result"] == pytest.approx(simulated.recorder.results[name])


DIGITS = """
deadline = 10.0
seed = 0
[task]
name = "digits"
samples = 60
[policy]
name = "random"
"""
ABC = ("alice", "bob", "carol")


@pytest.mark.slow
def test_killed_process_resumes_while_others_continue(tmp_path):
    with processes(tmp_path, ABC, "rounds = 1000000" + DIGITS) as federation:
        federation.start()
        federation.until_round("carol", 5)
        federation.signal("carol", signal.SIGKILL)
        federation.wait("carol")
        kept = federation.checkpoint("carol").round
        gone = federation.status("alice")["round"]
        assert kept >= 5
        federation.until_round("alice", gone + 12)
        history = {row["round"]: row for row in federation.status("alice")["history"]}
        assert "carol" not in history[gone + 10]["weights"]
        federation.start("carol")
        federation.until(
            lambda: any(
                "carol" in row["weights"] for row in federation.status("alice")["history"] if row["round"] > gone + 10
            ),
            "alice learns with carol",
        )
        federation.until_round("carol", gone + 11)  # its status may be written after others received its model
        federation.line_with("alice", "carol is back")
        back = federation.status("carol")["round"]
        for name in ABC:
            federation.signal(name, signal.SIGINT)
        federation.wait()
        assert [p.returncode for p in federation.running.values()] == [130, 130, 130]
        assert federation.checkpoint("carol").round >= back > gone + 10
        refused = [status["rejected"] for status in map(federation.status, ABC)]
        assert all(causes.keys() <= {"link lost"} for causes in refused), refused  # a frame may be in transit at the kill


@pytest.mark.slow
def test_members_of_a_list_of_edges_begin_when_their_own_neighbours_are_there(tmp_path):
    """No node has links with all members, for which the federation waits. Two of three wait for one of the last two."""
    names = [f"node-{k}" for k in range(5)]
    edges = list(zip(names, [*names[1:], names[0]], strict=True))
    table = 'rounds = 3\nmembers = 5\ndeadline = 60.0\n[task]\nname = "concept-shift"\n[policy]\nname = "fedavg"\n'
    with processes(tmp_path, names, table, edges=edges) as federation:
        federation.start(*names[:3], torch=False)
        for name in ("node-0", "node-2"):
            federation.line_with(name, "waiting for members: 2 of 3")
        assert {federation.status(name)["round"] for name in names[:3]} == {0}
        federation.start(*names[3:], torch=False)
        federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0] * 5
        for name in names:
            assert [len(row["weights"]) for row in federation.status(name)["history"]] == [3, 3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rings", "changing-rings"])
def test_processes_learn_with_their_neighbours_on_rings(tmp_path, name):
    """Each process computes its neighbours of a round from its own log, and has links with few others."""
    names = [f"node-{k}" for k in range(8)]
    table = 'rounds = 6\nmembers = 8\ndeadline = 60.0\n[task]\nname = "concept-shift"\n[policy]\nname = "fedavg"\n'
    with processes(tmp_path, names, table, topology={"name": name, "degree": 2}) as federation:
        federation.start(torch=False)
        federation.wait()
        assert [process.returncode for process in federation.running.values()] == [0] * 8
        log = load_federation(tmp_path / names[0])
        rule = RingRule(log.file.tables["seed"], name == "changing-rings", 2)
        rule.change(log.added)
        for node in names:
            state = federation.status(node)
            assert "not a neighbour" not in state["rejected"]
            for row in state["history"]:
                assert set(row["weights"]) - {node} == rule.neighbours(node, row["round"])


@deep
@pytest.mark.slow
def test_nine_processes_on_a_changing_graph_equal_the_simulator_and_survive_a_kill(tmp_path):
    """The same nine nodes run twice on a Base-2 graph: undisturbed, and with one that is killed and started again."""
    names, topology = [f"node-{k}" for k in range(9)], {"name": "base-k", "degree": 1}
    table = 'seed = 3\ndeadline = 20.0\nrobust = "none"\n[task]\nname = "digits"\nsamples = 60\n[policy]\nname = "dsgd"\n'
    with processes(tmp_path / "whole", names, f"rounds = 6\n{table}", topology=topology) as federation:
        federation.start()
        federation.wait()
        checkpoints = {name: federation.checkpoint(name) for name in names}
        history = {name: federation.status(name)["history"] for name in names}
    toml = f'nodes = 9\nrounds = 6\ntrainer = "one-by-one"\ntopology = {{ name = "base-k" }}\n{table}'
    simulated = run(resolve(tomllib.loads(toml), [], "same", ".").runs[0])
    edges = simulated.recorder.edges_table()
    for k, name in enumerate(names):
        assert checkpoints[name].params == simulated.nodes[name].me.whole.tobytes()
        assert [row["round"] for row in history[name]] == [1, 2, 3, 4, 5, 6]
        for row in history[name]:  # from whom it learned in each round, and with which weight
            here = (edges["round"] == row["round"]) & (edges["dst"] == k)
            learned = {names[src]: weight for src, weight in zip(edges["src"][here], edges["weight"][here], strict=True)}
            assert len(learned) <= 1
            shown = {id: weight for id, weight in row["weights"].items() if id != name}  # with four digits
            assert shown == pytest.approx(learned, abs=1e-4)

    with processes(tmp_path / "killed", names, f"rounds = 60\n{table}", topology=topology) as federation:
        federation.start()
        federation.until_round("node-4", 5)
        federation.signal("node-4", signal.SIGKILL)
        federation.wait("node-4")
        gone = federation.status("node-0")["round"]
        federation.until_round("node-0", gone + 2)
        federation.start("node-4")
        federation.wait()
        assert [p.returncode for p in federation.running.values()] == [0] * 9
        assert {federation.status(name)["round"] for name in names} == {60}
        last = federation.status("node-4")["history"]
        assert any(len(row["weights"]) == 2 for row in last if row["round"] > 50)  # it learns with others again


@pytest.mark.slow
def test_silent_process_costs_one_deadline(tmp_path):
    with processes(tmp_path, ABC, "rounds = 60" + DIGITS.replace("10.0", "6.0")) as federation:
        federation.start()
        federation.until_round("carol", 5)
        federation.signal("carol", signal.SIGSTOP)  # its sockets stay open, but it does not answer
        printed = federation.wait("alice", "bob")
        for name in ("alice", "bob"):
            assert federation.status(name)["deadlines_expired"] == 1
            assert federation.status(name)["round"] == 60
            assert "carol is missing: " in printed[name]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "private"), spread([(signal.SIGTERM, "head"), (signal.SIGINT, "")], 2))
def test_stopped_node_resumes_and_ends_with_same_model(tmp_path, number, private):
    rounds = f'rounds = 15\ndeadline = 10.0\n[task]\nname = "digits"\nprivate = "{private}"\n[policy]\nname = "local"\n'
    with processes(tmp_path / "whole", ("alice",), rounds) as whole:
        whole.start()
        whole.wait()
        expected = whole.checkpoint("alice").params
    with processes(tmp_path / "halves", ("alice",), rounds) as halves:
        halves.start()
        halves.until_round("alice", 3)
        halves.signal("alice", number)
        printed = halves.wait("alice")["alice"]
        assert halves.running["alice"].returncode == 130
        assert "stopping after this round" in printed
        stopped = halves.checkpoint("alice").round
        assert printed.splitlines()[-1] == f"stopped after round {stopped}; run again to continue"
        assert 3 <= stopped < 15
        halves.start()
        printed = halves.wait("alice")["alice"]
        resuming, pending = printed.splitlines()[1:3]
        assert resuming == f"resuming after round {stopped}"
        assert pending.startswith(f"round {stopped} of 15")  # whose metrics were still pending
        history = halves.status("alice")["history"]
        assert [row["round"] for row in history] == list(range(1, 16))  # the rounds of the first half are still listed
        assert all(row["validation"] is not None and row["weights"] == {"alice": 1.0} for row in history)
        assert (
            np.frombuffer(halves.checkpoint("alice").params, np.float32).tolist()
            == np.frombuffer(expected, np.float32).tolist()
        )
        export(halves.folders["alice"], tmp_path / "model.safetensors")  # the whole model, including private parts
        best = np.frombuffer(halves.checkpoint("alice").early_stopping["best"], np.float32)
        tensors = load_file(tmp_path / "model.safetensors")
        assert sum(tensor.size for tensor in tensors.values()) == best.size
        assert tensors["2.bias"].tolist() == best[-10:].tolist()


TASK = """
from p2pfl.tasks.digits import digits

def make(part, seed):
    return digits(part, seed, hidden={hidden})
"""


@pytest.mark.slow
def test_node_with_changed_agreed_settings_does_not_start(tmp_path):
    own = "rounds = 5\n[task]\nname = 'mine:make'\n[policy]\nname = 'random'\n"
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "mine.py").write_text(TASK.format(hidden=32))
    with processes(tmp_path, ("alice", "bob"), own, cwd=tmp_path, path=modules) as federation:
        for name, hidden in (("alice", 32), ("bob", 16)):
            (federation.folders[name] / "mine.py").write_text(TASK.format(hidden=hidden))
        for change in ("task.hidden=32", "rounds=6", "policy.name=dac"):
            federation.start("alice", changes=[change])
            key = change.partition("=")[0].partition(".")[0]
            assert f"--set {key}: this setting belongs to the federation test" in federation.wait("alice")["alice"]
            assert federation.running["alice"].returncode == 2
        federation.start("bob")
        assert "the number of parameters differs: " in federation.wait("bob")["bob"]
        assert federation.running["bob"].returncode == 2


@pytest.mark.slow
def test_late_process_takes_part(tmp_path):
    with processes(tmp_path, ABC, "rounds = 100000" + DIGITS.replace("10.0", "2.0")) as federation:
        federation.start("alice", "bob")
        federation.until_round("alice", 10)
        federation.start("carol")

        def last(name):
            return federation.status(name)["history"][-1]["weights"] if federation.status(name)["history"] else {}

        federation.until(lambda: set(last("alice")) == set(last("carol")) == set(ABC), "all three learn together")
        assert federation.status("carol")["history"][0]["round"] > 10


ENDLESS = """
import asyncio
import threading
from p2pfl.policies.local import Local

class Endless(Local):
    async def round(self, me, peers):
        print("begun", flush=True)
        await asyncio.to_thread(threading.Event().wait)
"""


@pytest.mark.slow
def test_second_signal_ends_node_at_once(tmp_path):
    with processes(
        tmp_path, ("alice",), '[task]\nname = "concept-shift"\n[policy]\nname = "endless:Endless"\n'
    ) as federation:
        (federation.folders["alice"] / "endless.py").write_text(ENDLESS)
        federation.start()
        federation.until(lambda: federation.printed("alice").endswith("begun\n"), "the round begins")
        federation.signal("alice", signal.SIGINT)
        stopping = "stopping after this round; press Ctrl-C again to stop at once\n"
        federation.until(lambda: federation.printed("alice").endswith(stopping), "alice is to stop")
        federation.signal("alice", signal.SIGINT)
        ended = "stopped at once; run again to continue after the last finished round\n"
        assert federation.wait()["alice"].endswith(stopping + ended)
        assert federation.running["alice"].returncode == 130
        assert federation.status("alice")["state"] == "stopped"
