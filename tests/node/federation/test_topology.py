"""Federations with a graph for each round: the members' graphs, runs as simulated, and what is refused."""

import numpy as np
import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main
from p2pfl.node.federation import agreement, loading
from p2pfl.node.federation.agreement import check_topology
from p2pfl.node.federation.membership_sync import Neighbourhood
from p2pfl.node.folder import config
from p2pfl.node.settings import Settings
from p2pfl.policies.dsgd import Dsgd
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.federation_file import Federation as FederationFile
from p2pfl.protocols.membership.log import Membership
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.topologies import make_schedule
from p2pfl.topologies.schedules import NamedSchedule
from tests.support.federation import play
from tests.support.simulated import run as simulate

TASK = 'task = {name = "concept-shift"}\npolicy = {name = "dsgd"}\n'
BASE = {"name": "base-k", "degree": 2}
ADMISSION = Identity.from_seed(bytes(32))
KEYS = [Identity.from_seed(bytes([k, 1]) + bytes(30)).public for k in range(30)]


@pytest.fixture
def alice(tmp_path):
    """The folder of a node without a federation."""
    folder = tmp_path / "alice"
    config.create(folder, "alice", "127.0.0.1:0")
    (folder / config.CONFIG).write_text(f'name = "alice"\nlisten = "127.0.0.1:0"\n{TASK}')
    return folder


def drafted(alice, topology):
    ready = loading.load(alice)
    return agreement.draft("test", ready.config, loading.task_of(ready), topology=topology)


@pytest.mark.slow
def test_members_compute_the_same_graphs_when_three_of_25_leave_and_two_join(alice):
    """Each member has a copy of the log, and learns of each change at another time."""
    file = FederationFile.sign(drafted(alice, BASE), ADMISSION)
    log = Membership(file)
    for k in range(25):
        log.append(ADMISSION, "add", f"m{k:02d}", KEYS[k])
    ready = loading.load(alice)
    agreed = agreement.read(file)
    views = {}
    for name in [*log.members, "new", "m05b"]:
        own = loading.LoadedNode(alice, ready.config, Membership(file, log.encode()), agreed)
        views[name] = own.membership, Neighbourhood(own, ())
    for k, name in ((0, "m00"), (12, "m12"), (24, "m24")):
        log.append(ADMISSION, "remove", name, KEYS[k])
    log.append(ADMISSION, "add", "new", KEYS[25])
    log.append(ADMISSION, "add", "m05b", KEYS[26])
    log.append(ADMISSION, "add", "watcher", KEYS[27], "observer")
    members = sorted(name for name in log.members if name != "watcher")
    assert len(members) == 24
    weights = {round: np.zeros((24, 24)) for round in (3, 4, 5)}
    for k, name in enumerate(members):
        own, around = views[name]
        own.extend(log.after(own.membership_version, 2**20))
        around.update()
        for round, matrix in weights.items():
            for source, weight in around.rounds.row(name, round).items():
                matrix[k, members.index(source)] = weight
    for round, matrix in weights.items():
        expected, found = np.zeros((24, 24)), make_schedule("base-k", 24, agreed.seed, degree=2).graph(round)
        expected[found.rows, found.sources] = found.weights
        assert (matrix == expected).all()
        assert np.allclose(matrix.sum(axis=0), matrix.sum(axis=1))  # with the own weights both are 1
        assert matrix.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("topology", [{"name": "base-k"}, {"name": "epidemic", "degree": 2}])
def test_running_nodes_equal_the_simulated_ones(topology):
    names = [f"node-{k}" for k in range(5)]
    settings = Settings(rounds=6, seed=0, deadline=60.0)
    options = {key: value for key, value in topology.items() if key != "name"}
    rounds = NamedSchedule(lambda n: make_schedule(topology["name"], n, 0, **options), names)

    async def finish(federation):
        federation.start()
        await federation.done()

    table = {"nodes": 5, "rounds": 6, "seed": 0, "deadline": 60.0, "trainer": "one-by-one", "topology": topology}
    table |= {"task": {"name": "concept-shift"}, "policy": {"name": "dsgd"}}
    simulated = simulate(resolve(table, [], "same", ".").runs[0])
    federation = play(finish, names, settings, policy=Dsgd, rounds=rounds)
    edges = simulated.recorder.edges_table()
    for k, name in enumerate(names):
        assert federation.nodes[name].me.params.tobytes() == simulated.nodes[name].me.params.tobytes()
        for round, weights in federation.watch[name].weights.items():
            here = (edges["round"] == round) & (edges["dst"] == k)
            learned = {names[src]: weight for src, weight in zip(edges["src"][here], edges["weight"][here], strict=True)}
            assert {id: np.float32(weight) for id, weight in weights.items() if id != name} == learned


def test_file_names_the_rule_and_links_compare_it(alice):
    agreed = agreement.read(FederationFile.sign(drafted(alice, BASE), ADMISSION))
    assert agreed.topology == BASE
    assert "topology" not in drafted(alice, None)
    ready = loading.load(alice)
    layout = loading.task_of(ready).layout
    terms = agreement.terms(layout, ready.config, "", topology=agreed.topology)
    assert terms["system topology"] == "no server; another graph in each round: base-k (degree = 2)"


@pytest.mark.parametrize(
    ("topology", "edges", "words"),
    [
        ({"name": "base-k"}, (("a", "b"),), "a topology or edges, not both"),
        ({"name": "hypercube"}, "all", "base-k with degree = 1"),
        ({"name": "ring"}, "all", "topology"),
        ({"name": "base-k", "k": 2}, "all", "topology.degree"),
        ({"name": "base-k", "degree": 0}, "all", "degree must be 1 or more"),
    ],
)
def test_rules_that_members_cannot_follow_are_refused(topology, edges, words):
    with pytest.raises(ConfigurationError) as refused:
        check_topology(topology, edges)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_command_creates_a_federation_with_a_rule(alice, capsys, tmp_path):
    create = ["federation", "create", str(alice), "--backup", str(tmp_path / "key")]
    for arguments, words in (
        (["--set", "topology.degree=2"], "name it with --topology NAME"),
        (["--topology", "base-k", "--edge", "alice-bob"], "a topology or edges, not both"),
        (["--topology", "base-k", "--set", "topology.k=2"], "topology.degree"),
        (["--topology", "base-k", "--set", 'policy={name="dpfl"}'], "policy"),
        (["--topology", "base-k", "--set", 'policy={name="sgp"}'], "adds up what it receives"),
        (["--topology", "base-k", "--set", 'policy={name="coordinated-fedavg"}'], "from a coordinator"),
    ):
        assert main([*create, *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert main([*create, "--topology", "base-k", "--set", "topology.degree=2", "--set", "rounds=3"]) == 0
    assert loading.load(alice).agreement.topology == BASE
    capsys.readouterr()
    assert main(["federation", "show", str(alice)]) == 0
    assert "  topology:\n    name: base-k\n    degree: 2\n" in capsys.readouterr().out
