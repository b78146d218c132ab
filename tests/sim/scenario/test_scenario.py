"""Scenarios: one file for one table, and a one-line error for each mistake in it."""

import gc
import os
import re
import sys
from contextlib import nullcontext
from math import inf
from pathlib import Path

import pytest
import torch

from p2pfl import simulate
from p2pfl.errors import ConfigurationError
from p2pfl.policies import make_policy
from p2pfl.sim.cli.options import parse_seeds
from p2pfl.sim.scenario.scenario import load, resolve, shipped_scenarios
from p2pfl.sim.simulation.plan import check
from p2pfl.task import Part, make_task

TOML = """
name = "study"
nodes = 8
rounds = 2
seeds = [4, 5]
policy = { name = "dac", tau = 7.0 }

[task]
name = "concept-shift"
lr = 0.01

[forms.smoke]
nodes = 3

[forms.short]
seeds = [1, 2, 3]
runs = { hot = {}, "as it is" = { policy = { tau = 9.0 } } }

[[run]]
name = "alone"
policy = { name = "local" }
paper = 1.5

[[run]]
name = "hot"
policy.tau = 100.0
task.samples = 10

[[run]]
name = "as it is"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(TOML)
    return str(path)


def refusal(name, *changes):
    with pytest.raises(ConfigurationError) as refused:
        scenario = load(name, changes)
        for run in scenario.runs:
            check(run)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_runs_override_common_keys(file):
    alone, hot, plain = load(file).runs
    assert (alone.name, alone.policy, alone.paper) == ("alone", {"name": "local"}, 1.5)
    assert hot.policy == {"name": "dac", "tau": 100.0}
    assert hot.task == {"name": "concept-shift", "lr": 0.01, "samples": 10}
    assert plain.policy == {"name": "dac", "tau": 7.0}
    assert load(file).seeds == (4, 5)


def test_change_applies_to_all_runs(file):
    for run in load(file, ["nodes=20", "network.latency=0.5", "task.lr=0.1", "budget.models=3"]).runs:
        assert (run.nodes, run.network.latency, run.task["lr"], run.budget.models) == (20, 0.5, 0.1, 3)
    assert load(file, ["network.latency=[0.1, 0.2]"]).runs[0].network.latency == (0.1, 0.2)


def test_last_change_of_a_key_wins(file):
    assert load(file, ["nodes=20", "nodes=30"]).runs[0].nodes == 30


def test_change_of_name_drops_previous_options(file):
    runs = load(file, ["policy.name=random", "policy.neighbours=2", "topology.name=ring"]).runs
    assert {tuple(run.policy.items()) for run in runs} == {(("name", "random"), ("neighbours", 2))}
    assert {run.topology["name"] for run in runs} == {"ring"}


def test_change_of_attack_keeps_its_share():
    base = {"nodes": 8, "attack": {"name": "alie", "share": 0.5, "z": 2.0}}
    (run,) = resolve(base, ["attack.name=ipm"], "x", ".").to_toml()["run"]
    assert run["attack"] == {"name": "ipm", "share": 0.5}


def test_runs_made_equal_by_changes_are_renamed_and_merged(file):
    assert [run.name for run in load(file, ["policy.name=random"]).runs] == ["random", "random (2)"]  # tasks differ
    assert [run.name for run in load("dac-synthetic", ["policy.name=local", "task.lr=0.1"]).runs] == ["local"]


def test_notes_name_runs_left_out_as_equal():
    changed = resolve({"run": [{"name": "a"}, {"name": "b", "nodes": 7}, {"name": "c"}]}, ["nodes=5"], "study", ".")
    assert [run.name for run in changed.runs] == ["a", "c"]  # c was equal to a before
    assert changed.notes == (
        "left out, because the changes make them equal to other runs: b",
        "rows keep their names of the file, although all have nodes = 5 now",
    )


def test_equal_runs_of_the_file_are_kept(file):
    twice = resolve({"run": [{"name": "a"}, {"name": "again", "paper": 3.0}]}, [], "study", ".")
    assert [run.name for run in twice.runs] == ["a", "again"]
    assert twice.notes == load(file).notes == ()


def test_form_overrides_keys_and_seeds(file):
    assert {run.nodes for run in load(file, ["form=smoke"]).runs} == {3}
    assert {run.nodes for run in load(file, ["form=smoke", "nodes=5"]).runs} == {5}
    assert {run.nodes for run in load(file, ["form=full"]).runs} == {8}
    assert load(file, ["form=smoke"]).seeds == (4, 5)
    assert load(file, ["form=short"]).seeds == (1, 2, 3)
    assert load(file, ["form=short", "seed=9"]).seeds == (9,)
    assert "unknown form 'smok'; did you mean 'smoke'?" in refusal(file, "form=smok")
    assert "study: unknown form" in refusal(file, 'form=["smoke"]')


def test_form_may_select_and_change_runs(file):
    short = load(file, ["form=short"])
    assert [(run.name, run.policy) for run in short.runs] == [
        ("hot", {"name": "dac", "tau": 100.0}),
        ("as it is", {"name": "dac", "tau": 9.0}),
    ]
    text = Path(file).read_text()
    Path(file).write_text(text.replace('"as it is" = {', '"as it was" = {'))
    assert "study: runs of a form: unknown run 'as it was'; did you mean 'as it is'?" in refusal(file, "form=short")
    Path(file).write_text(re.sub("runs = .*", "runs = ['hot']", text))
    assert "study: runs of a form must be one or more tables named like runs, got ['hot']" in refusal(file, "form=short")
    Path(file).write_text(re.sub("runs = .*", "runs = {}", text))
    assert "one or more tables named like runs, got {}" in refusal(file, "form=short")


def test_seed_change_replaces_seeds_of_the_file(file):
    assert load(file, ["seed=9"]).seeds == (9,)


def test_description_names_a_form_with_other_settings():
    raw = {"nodes": 8, "task": "concept-shift", "policy": "local", "forms": {"smoke": {"nodes": 3}}}
    assert resolve(raw, ["form=smoke"], "study", ".").description == ""
    raw["description"] = "Eight nodes learn."
    assert resolve(raw, [], "study", ".").description == "Eight nodes learn."
    lines = resolve(raw, ["form=smoke"], "study", ".").description.splitlines()
    assert lines == ["Eight nodes learn.", "This is the form `smoke`: its settings differ from those of the description."]


def test_only_selects_runs_by_name(file):
    assert [run.name for run in load(file).only("a").runs] == ["alone", "as it is"]
    assert [run.name for run in load(file).only("alone", "hot").runs] == ["alone", "hot"]
    assert [run.name for run in load(file).only("=hot", "is").runs] == ["hot", "as it is"]
    with pytest.raises(ConfigurationError, match="no run of study is named 'alon'; its runs: "):
        load(file).only("=alon")
    known = 'no run of study has \'x\' in its name; its runs: "alone", "hot", "as it is"$'
    with pytest.raises(ConfigurationError, match=known):
        load(file).only("x")
    each = {"task.lr": [k / 10 for k in range(1, 21)]}
    many = resolve({"nodes": 2, "rounds": 1, "run": [{"name": "a", "each": each}]}, [], "study", ".")
    with pytest.raises(ConfigurationError, match=r'"a, task\.lr=0\.8" and 12 more$'):
        many.only("x")


def test_runs_are_selected_by_their_names_before_changes():
    table = {"run": [{"name": "one", "policy": "random"}, {"name": "two", "policy": "local"}]}
    (run,) = resolve(table, ["policy.name=dac", "policy.neighbours=2"], "study", ".", only=["one"]).runs
    assert (run.name, run.policy["neighbours"]) == ("dac", 2)
    assert [run.name for run in resolve(table, ["policy.name=dac"], "study", ".", only=["dac"]).runs] == ["dac"]
    with pytest.raises(ConfigurationError, match="no run of study has 'two' in its name"):
        resolve(table, ["policy.name=dac"], "study", ".", only=["dac", "two"])


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_scenarios())
def test_shipped_scenarios_use_existing_names(name):
    file = load(name)
    assert file.description
    if any(run.task.get("data", "digits") != "digits" for run in file.runs) and "P2PFL_DATA" not in os.environ:
        pytest.skip("P2PFL_DATA names no folder with data sets")
    if name == "dac-cifar100":
        pytest.skip("CIFAR-100 is for users to bring")
    if name.startswith("fedpref-morl"):
        pytest.importorskip("mo_gymnasium", reason="needs the extra morl")
    made = []
    for run in file.runs:
        task, policy = dict(run.task), dict(run.policy)
        if (task, run.nodes) not in made:  # most runs of a file have the same
            made.append((dict(task), run.nodes))
            make_task(task.pop("name"), task, Part(0, run.nodes), 0)
        make_policy(policy.pop("name"), policy)
    full, smoke = (each.runs[0].nodes * each.runs[0].rounds for each in (file, load(name, ["form=smoke"])))
    assert smoke < full


ATTACKERS_REFUSE = {"nodes=6": r"attack\.nodes must be numbers", "fidelity=wire": 'needs fidelity = "modelled"'}


@pytest.mark.parametrize("name", shipped_scenarios())
def test_every_shipped_scenario_accepts_common_keys(name):
    smoke = load(name, ["form=smoke"])
    assert smoke.runs
    assert load(name, ["form=smoke", "rounds=1", "seed=3", "policy.name=random", "topology.name=ring"]).runs
    assert load(name, ["form=smoke", "task.name=digits"]).runs
    for change, refused in ATTACKERS_REFUSE.items():
        if any("nodes" in (run.attack or {}) for run in smoke.runs):
            with pytest.raises(ConfigurationError, match=refused):
                load(name, ["form=smoke", change])
        else:
            assert load(name, ["form=smoke", change]).runs


EACH = {
    "run": [
        {"name": name, "topology": {"name": name}, "each": {"budget.models": [1, 4, 0]}} for name in ("ring", "complete")
    ]
}


def test_each_without_pool_is_a_sweep():
    claim = {"run": "ring, budget.models=4", "above": "ring, budget.models=1"}
    file = resolve(EACH | {"claim": [claim], "against": "complete, budget.models=0"}, [], "study", ".")
    assert [run.name for run in file.runs[:3]] == [f"ring, budget.models={k}" for k in (1, 4, 0)]
    assert [run.varied for run in file.runs[:3]] == [{"budget.models": k} for k in (1, 4, 0)]
    assert file.varied == {"budget.models": [1, 4, 0]}
    again = resolve(file.to_toml(), [], "study", ".")
    assert (again.runs, again.varied) == (file.runs, file.varied)


def test_change_of_a_varied_key_removes_it_from_names():
    file = resolve(EACH, ["budget.models=2"], "study", ".")
    assert [(run.name, run.budget.models, run.varied) for run in file.runs] == [("ring", 2, {}), ("complete", 2, {})]
    assert file.varied == {}
    assert file.notes[0].endswith(
        "equal to other runs: ring, budget.models=4, ring, budget.models=0, complete, budget.models=4 and 1 more"
    )


def test_topology_study_combines_seven_graphs_and_five_budgets():
    file = load("topology-study")
    assert len({str(run.topology) for run in file.runs}) == 7
    assert file.varied == {"budget.models": [1, 2, 4, 8, 0]}
    assert len({(str(run.topology), run.budget.models) for run in file.runs}) == len(file.runs) == 35


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ndoes=3", "unknown key 'ndoes'; did you mean 'nodes'?"),
        ("network.latncy=3", "unknown key 'network.latncy'; did you mean 'network.latency'?"),
        ("policy.name=dax", "unknown policy 'dax'; did you mean 'dac'?"),
        ("task.name=digit", "unknown task 'digit'; did you mean 'digits'?"),
        ("topology.name=tourus", "unknown topology 'tourus'; did you mean 'torus'?"),
        ("topology.degre=3", "run 'alone': unknown key 'topology.degre'; the topology 'complete' has no options"),
        ("edges=2", "unknown key 'edges'; topology.edges is an option of the topologies barabasi-albert, scale-free"),
        ("nodes=many", "nodes must be a whole number, got 'many'"),
        ("nodes=2.5", "nodes must be a whole number, got 2.5"),
        ("rounds=-1", "rounds must be 0 or more, got -1"),
        ("adaptive=true", 'adaptive = true needs fidelity = "wire"'),
        ("nodes=0", "nodes must be 1 or more, got 0"),
        ("seed=-1", "seed must be 0 or more, got -1"),
        ("patience=-1", "patience must be 0 or more"),
        ("deadline=0", "deadline must be more than 0 seconds"),
        ("deadline=nan", "deadline must be more than 0 seconds"),
        ("budget.models=-1", "budget.models must be 0 (no limit) or more, got -1"),
        ("network.loss=1.5", "network.loss must be at least 0 and below 1"),
        ("network.latency=-1.0", "network.latency must be a number of 0 or more"),
        ("network.latency=[2.0, 1.0]", "network.latency must be a number of 0 or more, or a pair"),
        ("network.latency=inf", "network.latency must be a number of 0 or more"),
        ("network.jitter=nan", "network.jitter must be 0 or more, and finite, got nan"),
        ("network.jitter=inf", "network.jitter must be 0 or more, and finite, got inf"),
        ("network.loss=nan", "network.loss must be at least 0 and below 1"),
        ("network.bandwidth=nan", "network.bandwidth must be a number of 0 or more"),
        ("max_staleness=nan", "max_staleness must be more than 0 seconds"),
        ("paper=nan", "paper must be a finite number, got nan"),
        ("compute.seconds=-1.0", "compute.seconds must be 0 or more"),
        ("compute.seconds=nan", "compute.seconds must be 0 or more, and finite, got nan"),
        ("compute.seconds=inf", "compute.seconds must be 0 or more, and finite, got inf"),
        ("compute.slowdown=nan", "compute.slowdown must be a number of 0 or more"),
        ("compute.slowdown=[1.0]", "compute.slowdown"),
        (
            "mode=sync",
            "study: mode must be one of synchronous, asynchronous, got 'sync'; did you mean 'synchronous'?",
        ),
        ("fidelity=3", "study: fidelity must be one of modelled, wire, got 3"),
        ("policy=3", 'study: policy must be a table such as { name = "dac" }, got 3'),
        ("network=3", "study: network must be a table such as { latency = 0.1 }, got 3"),
        ("budget=3", "study: budget must be a table such as { models = 3 }, got 3"),
        ("task={name=3}", "study: task.name must be a string, got 3"),
        ("policy.tau=-1.0", "run 'alone': unknown key 'policy.tau'; known: policy.epochs, policy.reported_stage"),
        ("task.lr=fast", "run 'alone': task.lr must be a number, got 'fast'"),
        ("task.lr=nan", "run 'alone': task: lr must be 0 or more, and finite, got nan"),
        ("device=tpu", "unknown device 'tpu'"),
        ("device=cpu:abc", "run 'alone': device 'cpu:abc' is not of the form cpu or cpu:0"),
        ("nodes", "'nodes' is not of the form key=value"),
        ("=3", "is not of the form key=value"),
        ("nodes.x=3", "nodes is not a table"),
    ],
)
def test_invalid_change_reports_one_line(file, change, message):
    text = refusal(file, change)
    assert message in text
    if not text.startswith("run "):  # an error of a run before it starts
        with pytest.raises(ConfigurationError) as refused:
            load(file, [change], changer="command line")
        assert str(refused.value) == f"command line: {text.removeprefix('study: ')}"


@pytest.mark.parametrize(
    ("keys", "change", "message"),
    [
        ("network = { jitter = -1.0 }", "network.latency=0.1", "study: network.jitter must be"),
        ("network = { jitter = -1.0 }", "network.jitter=0.1", ""),
        ("rounds = -1", "seed=3", "study: rounds must be"),
        ("target = nan", "target=0.5", ""),
        ("target = 0.5", "target=x", "command line: target must be a number, got 'x'"),
        ("deadline = inf", "network.loss=0.1", "command line: with deadline = inf a node waits"),
        ("forms.short.rounds = -1", "form=short", "study: rounds must be"),
        ("forms.short.rounds = 1", "form=long", "command line: unknown form 'long'; known: full, short"),
        ("[[run]]\nname = 'a'\n[[run]]\nname = 'b'\nnodes = 3", "name=c", "command line: two runs have the name 'c'"),
        ("policy = 'nowhere:Policy'", "seed=3", "study: the policy 'nowhere:Policy' needs the module nowhere"),
        ("topology = 'ring'", "topology.file=none.graphml", "command line: topology.file: the file none.graphml does not"),
        ("nodes = 3", "varied.nodes=[3]", "command line: varied is written by a sweep"),
        ("attack = { name = 'alie', share = 2.0 }", "seed=3", "study: attack.share must be"),
        ("attack = { name = 'alie' }", "attack.share=2.0", "command line: attack.share must be"),
    ],
)
def test_error_names_source_of_wrong_value(tmp_path, keys, change, message):
    path = tmp_path / "study.toml"
    path.write_text(keys)
    with pytest.raises(ConfigurationError) if message else nullcontext() as refused:
        load(str(path), [change], changer="command line")
    assert str(refused.value if refused else "").startswith(message)


def test_key_of_wrong_type_is_named_in_full(tmp_path):
    for keys, message in (
        ("differences = ['a', 1]", "study: differences[1] must be a string, got 1"),
        ("printed.mean.a = 'x'", "study: printed.mean.a must be a number, got 'x'"),
        ("varied.nodes = 3", "study: varied.nodes must be a list, got 3"),
        ("[[claim]]\nrun = 'study'\nby = 'x'", "study: claim: by must be a number, got 'x'"),
    ):
        (tmp_path / "study.toml").write_text(keys)
        assert refusal(str(tmp_path / "study.toml")) == message


@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_loss_without_a_deadline_is_refused(fidelity):
    table = {"nodes": 3, "deadline": inf, "fidelity": fidelity}
    with pytest.raises(ConfigurationError) as caught:
        resolve(table | {"network": {"loss": 0.01}}, [], "study", ".")
    assert str(caught.value) == (
        "study: with deadline = inf a node waits for ever for a message that network.loss = 0.01 loses; set a finite"
        " deadline, such as deadline = 30, or network.loss = 0"
    )
    assert resolve(table | {"network": {"jitter": 0.1}}, [], "study", ".").runs[0].deadline == inf


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (["topology.name=k-regular", "topology.degree=8"], "degree must be at least 0 and below 8 for 8 nodes"),
        (["topology.name=k-regular", "topology.degree=3", "nodes=5"], "degree must be at least 0 and below 5 for 5 nodes"),
        (["topology.name=small-world", "topology.degree=9"], "degree must be even, from 2 to 7 for 8 nodes, got 9"),
        (["topology.name=small-world", "topology.rewire=1.5"], "rewire must be from 0 to 1"),
        (["topology.name=erdos-renyi", "topology.p=-0.5"], "p must be from 0 to 1"),
    ],
)
def test_impossible_topology_is_refused(file, topology, message):
    assert message in refusal(file, *topology)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("nodes = ", "Invalid value (at end of document)"),
        ("nodes = 3\nnodes = 4\n", "Cannot overwrite a value (at line 2"),
        ("run = 3", "broken: run must be a list of tables, each headed [[run]], got 3"),
        ("run = 0", "broken: run must be a list of tables, each headed [[run]], got 0"),
        ("name = 3", "broken: name must be a string, got 3"),
        ('[[runs]]\nname = "x"', "broken: unknown key 'runs'; did you mean 'run'?"),
        ("[[run]]\nname = 3", "broken: name must be a string, got 3"),
        ("description = 3", "broken: description must be a string, got 3"),
        ("modules = 3", "broken: modules must be a string, got 3"),
        ('form = ["x"]', "broken: form must be a string, got ['x']"),
        ("forms = 3", "broken: forms must be a table such as [forms.smoke], got 3"),
        ("[forms]\nsmoke = 3", "broken: forms.smoke must be a table, got 3"),
        ('seeds = "x"', "broken: seeds must be a list of whole numbers of 0 or more, got 'x'"),
        ("seeds = [3, 1, 3]", "broken: seeds must not repeat a seed, got 3 more than once"),
        ("seeds = [-1]", "seeds must be a list of whole numbers of 0 or more"),
        ("seeds = 3", "seeds must be a list of whole numbers of 0 or more"),
        ("[policy]\ntau = 3.0", "policy.name is missing"),
        ('[[run]]\nname = "a"\n[[run]]\nname = "a"\nrounds = 3', "two runs have the name 'a'"),
        ("\xff", "codec"),
    ],
)
def test_invalid_scenario_file_is_refused(tmp_path, toml, message):
    path = tmp_path / "broken.toml"
    path.write_bytes(toml.encode("latin-1"))
    assert message in refusal(str(path))


def test_unknown_scenario_suggests_the_nearest(tmp_path):
    assert "unknown scenario 'dac-synthetc'; did you mean 'dac-synthetic'," in refusal("dac-synthetc")
    assert "does not exist" in refusal(str(tmp_path / "none.toml"))
    (tmp_path / "scenario.toml").write_text("")
    assert refusal(str(tmp_path)) == f"{tmp_path} is a folder; name its file {tmp_path / 'scenario.toml'}"


def test_scenario_without_runs_has_one_run():
    (run,) = resolve({"nodes": 3}, [], "plain", ".").runs
    assert (run.name, run.nodes) == ("plain", 3)


def test_parse_seeds_accepts_lists_and_ranges():
    assert parse_seeds("0:3") == [0, 1, 2]
    assert parse_seeds(":2") == [0, 1]
    assert parse_seeds("7") == [7]
    assert parse_seeds("3,1") == [3, 1]
    for wrong in ("", "a", "-1", "1:x", "0:1:2"):
        with pytest.raises(ConfigurationError, match="must be a range such as 0:5"):
            parse_seeds(wrong)
    for empty in ("3:3", "5:2", ":", "0:"):
        with pytest.raises(ConfigurationError, match=f"--seeds {empty} is empty"):
            parse_seeds(empty)
    with pytest.raises(ConfigurationError, match="--seeds must not repeat a seed, got 0 more than once"):
        parse_seeds("0,1,0")
    with pytest.raises(
        ConfigurationError, match=f"--seeds 5:{10**18} are 999,999,999,999,999,995 seeds; the maximum is 100,000"
    ):
        parse_seeds(f"5:{10**18}")


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_infinite_deadline_never_expires(fidelity):
    tables = {"nodes": 3, "rounds": 2, "task": {"name": "concept-shift"}, "deadline": inf, "fidelity": fidelity}
    (result,) = simulate(tables)
    assert result.summary["deadlines_expired"] == 0
    assert result.summary["traffic"]["models"] == 12


def test_simulate_refuses_repeated_seed():
    with pytest.raises(ConfigurationError, match="seeds must not repeat a seed, got 1 more than once"):
        simulate("dac-synthetic", seeds=[1, 1])


@pytest.mark.parametrize("policy", ["local", "nowhere:Policy"])
def test_simulate_restores_process_state(policy, tmp_path):
    def state():
        return torch.get_num_threads(), gc.get_threshold(), gc.get_freeze_count(), list(sys.path)

    thresholds = gc.get_threshold()
    torch.set_num_threads(2)
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()  # unfreeze objects that an earlier test has frozen
    try:
        before = state()
        tables = {"nodes": 3, "rounds": 1, "task": {"name": "concept-shift"}, "modules": str(tmp_path)}
        with nullcontext() if policy == "local" else pytest.raises(ConfigurationError):
            simulate(tables | {"policy": {"name": policy}})
        assert state() == before
    finally:
        torch.set_num_threads(1)
        gc.set_threshold(*thresholds)


# Budgets and comparisons


def test_budget_may_be_a_share_of_the_nodes():
    run = resolve({"nodes": 30, "budget": {"models": 0.2}}, [], "study", ".").runs[0]
    assert run.budget.of(0, "node-00", 30).models == 6
    assert run.budget.of(0, "node-00", 3).models == 1
    for share in (0.0, 1.0, -0.5):
        with pytest.raises(ConfigurationError, match=r"budget.models must be a share of the nodes above 0 and below 1"):
            resolve({"budget": {"models": share}}, [], "study", ".")


def test_against_names_the_reference_run(tmp_path):
    text = 'against = "a"\n[[run]]\nname = "a"\n[[run]]\nname = "b"\nrounds = 3\n'
    (tmp_path / "study.toml").write_text(text)
    file = load(str(tmp_path / "study.toml"))
    assert file.against == "a"
    assert file.only("a").against == "a"
    assert file.only("b").against == ""
    assert resolve(file.to_toml(), [], "study", ".").against == "a"
    (tmp_path / "study.toml").write_text(text.replace('"a"\n[[run]]\nname = "a"', '"c"\n[[run]]\nname = "a"'))
    assert "study: against: unknown run 'c'" in refusal(str(tmp_path / "study.toml"))


def test_data_of_a_file_is_looked_up_in_its_folder(tmp_path, monkeypatch):
    for folder in ("study", "here"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    file = tmp_path / "study" / "own.toml"
    file.write_text('nodes = 2\ntask = { name = "classification", data = "table.csv" }\npolicy = { name = "local" }\n')
    (tmp_path / "here" / "table.csv").write_text("x,y\n1,0\n")
    found = load(str(file))
    assert found.runs[0].task["data"] == "table.csv"
    assert found.notes == (
        f"task.data: table.csv is not in the scenario's folder {tmp_path / 'study'}; that of the current folder is used",
    )
    (tmp_path / "study" / "table.csv").write_text("x,y\n1,0\n")
    found = load(str(file))
    assert (found.runs[0].task["data"], found.notes) == (str(tmp_path / "study" / "table.csv"), ())
    assert load(str(file), ["task.data=table.csv"]).runs[0].task["data"] == "table.csv"  # a path of the command line
