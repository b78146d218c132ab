"""PraFFL: model and losses against independent computations, both phases, answers, and data on the wire."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors import safe_open
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional

from p2pfl.errors import ConfigurationError
from p2pfl.fairness.metrics import covariance_loss, decide, demographic_parity
from p2pfl.fairness.praffl import HEAD_SHAPES, HEAD_SIZE, PrafflLearner, error_and_disparity, heads, losses, spread
from p2pfl.node.cli.export import encoder_for
from p2pfl.node.cli.main import main
from p2pfl.node.settings import Settings
from p2pfl.parameters import Layout
from p2pfl.pareto_metrics import hypervolume, non_dominated
from p2pfl.policies.coordinated import CoordinatedFedAvg
from p2pfl.policies.random import Random
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.report.write import report
from p2pfl.sim.results.objectives import died
from p2pfl.sim.results.results import result_of, summarise, write
from p2pfl.sim.scenario.scenario import load, resolve
from p2pfl.sim.simulation.clock import run as run_virtually
from p2pfl.task import Part, make_task
from tests.support.depth import deep
from tests.support.federation import Federation
from tests.support.report_pages import figures
from tests.support.simulated import run

SMALL = {"rows": 600, "communicated": 2, "personal": 2, "preferences": 8, "measured": 30}


def task_of(part=Part(0, 3), **options):  # noqa: B008
    return make_task("praffl", SMALL | options, part, 0)


def trained(task, rounds=1, **changes):
    learner, params = task.learner(RandomStreams(0, "a")), task.initial(0)
    for round in range(1, rounds + 1):
        params = learner.train(params, round=round, **changes)
    return params


# The model and its losses


def test_head_as_affine_map_equals_module_for_preference():
    task = task_of()
    params, x = trained(task), task.data["test"].x
    tensors = {name: torch.from_numpy(array) for name, array in task.layout.unflatten(params).items()}
    for preference in ([0.3, 0.7], [1.0, 0.0], [0.0, 1.0]):
        (weight,), (bias,) = heads(tensors, torch.tensor([preference]))
        module = task.model_for(params, preference)
        expected = module.get_submodule("body")(x) @ weight + bias
        torch.testing.assert_close(module(x)[:, 0], expected, rtol=1e-4, atol=1e-5)
        flat = functional.linear(torch.tensor(preference), tensors["hypernetwork.weight"], tensors["hypernetwork.bias"])
        for name, part in Layout(HEAD_SHAPES, HEAD_SIZE).unflatten(flat).items():  # one preference, one head (eq. 9)
            torch.testing.assert_close(module.get_submodule("head").get_parameter(name), part)


def test_body_has_relu_after_both_layers_and_head_has_none():
    module = task_of().model_for(trained(task_of()), [0.5, 0.5])
    assert [type(part) for part in module.get_submodule("body")] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert [(part.in_features, part.out_features) for part in module.get_submodule("head")] == [
        (4, 16),
        (16, 4),
        (4, 8),
        (8, 1),
    ]


@given(st.integers(2, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_batched_losses_and_measures_equal_single_ones(groups, seed):
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(12, 5, generator=rng)
    labels = torch.randint(2, (12,), generator=rng).float()
    numbers = torch.randint(groups, (12,), generator=rng)
    members = functional.one_hot(numbers, groups).float()
    both, found = losses(logits, labels, members), error_and_disparity(logits, labels, members)
    for k in range(5):
        entropy = functional.binary_cross_entropy_with_logits(logits[:, k], labels)
        probabilities = torch.sigmoid(logits[:, k])
        expected = torch.stack([entropy, covariance_loss(probabilities, numbers, groups)])
        torch.testing.assert_close(both[k], expected, rtol=1e-4, atol=1e-6)
        decisions = decide(probabilities)
        disparity = demographic_parity(decisions, labels, numbers, groups, "mean")
        torch.testing.assert_close(found[k], torch.stack([(decisions != labels).float().mean(), disparity]))


def test_spread_preferences_are_equally_spaced():
    assert spread(3).tolist() == [[0, 1], [0.5, 0.5], [1, 0]]
    assert spread(1).tolist() == [[0.5, 0.5]]


# Training


def parts_of(task, params):
    """The body psi and the hypernetwork."""
    shared = task.layout.shared.size
    return params[:shared], params[shared:]


def test_each_training_phase_changes_one_part():
    for options, changed in (({"personal": 0}, (True, False)), ({"communicated": 0}, (False, True))):
        task = task_of(**options)
        before, after = parts_of(task, task.initial(0)), parts_of(task, trained(task))
        assert tuple(not np.array_equal(old, new) for old, new in zip(before, after, strict=True)) == changed


def test_praffl_training_is_pure_and_seeded_by_round():
    task = task_of()
    learner, params = task.learner(RandomStreams(0, "a")), task.initial(0)
    kept = params.copy()
    first = learner.train(params, round=1)
    other = learner.train(params, round=2)
    assert learner.train(params, round=1).tobytes() == first.tobytes() != other.tobytes()
    assert params.tobytes() == kept.tobytes()


def test_proximal_term_pulls_body_to_the_anchor():
    task = task_of(optimizer={"name": "sgd", "lr": 0.1}, personal=0)
    anchor = np.zeros_like(task.initial(0))
    free, held = (parts_of(task, trained(task, proximal=term)) for term in (None, (10.0, anchor)))
    assert np.abs(held[0]).max() < 0.1 < np.abs(free[0]).max()
    assert held[1].tobytes() == parts_of(task, task.initial(0))[1].tobytes()


@pytest.mark.slow
def test_trained_preference_trades_accuracy_for_fairness():
    task = make_task("praffl", {"communicated": 10, "personal": 10, "measured": 100}, Part(0, 3), 0)
    params = trained(task, rounds=3)
    x, labels, groups = task.data["test"]
    found = []
    for preference in ([0.0, 1.0], [1.0, 0.0]):
        decisions = decide(torch.sigmoid(task.model_for(params, preference)(x)[:, 0]))
        disparity = demographic_parity(decisions, labels, groups, 2, "mean")
        found.append(((decisions != labels).float().mean().item(), disparity.item()))
    (best, unfair), (worst, fair) = found
    assert best < 0.17 < worst - 0.05
    assert fair < 0.1 < unfair - 0.1
    learner = task.learner(RandomStreams(0, "a"))
    (figures,) = learner.evaluate([params], ["test"])
    points = learner.points(params, "test")
    assert points.shape == (100, 2)
    assert points[0] == pytest.approx(found[0])
    assert points[-1] == pytest.approx(found[1])
    assert figures["test_hypervolume"] == pytest.approx(hypervolume(-points, [-1.0, -1.0]))
    assert figures["test_hypervolume"] == pytest.approx(1 - figures["test_loss"])
    assert figures["test_hypervolume"] > 0.7
    assert figures["test_smallest_error"] == pytest.approx(points[:, 0].min())
    assert figures["test_mean_disparity"] == pytest.approx(points[:, 1].mean())
    assert learner.loss([params], split="test").tolist() == [figures["test_loss"]]


def test_single_model_is_measured_by_one_point():
    task = task_of(model="single")
    params = task.learner(RandomStreams(0, "a")).train(task.initial(0), round=1, epochs=30)
    (figures,) = task.learner(RandomStreams(0, "a")).evaluate([params], ["test"])
    error, disparity = figures["test_smallest_error"], figures["test_smallest_disparity"]
    assert figures["test_hypervolume"] == pytest.approx((1 - error) * (1 - disparity))
    assert error < 0.2 < disparity
    assert not task.layout.private


def test_constant_classifier_is_measured_alone_and_with_a_model():
    made = {name: task_of(model=name) for name in ("single", "constant", "single or constant")}
    params = trained(made["single"])
    found = {
        name: task.learner(RandomStreams(0, "a")).evaluate([params], ["test"])[0]["test_hypervolume"]
        for name, task in made.items()
    }
    labels = made["single"].data["test"].y[:, 0]
    share = labels.mean().item()
    point = made["single"].solutions(params).points[0]
    assert found["constant"] == pytest.approx(max(share, 1 - share))
    assert made["constant"].solutions(params).points.tolist() == [[pytest.approx(min(share, 1 - share)), 0.0]]
    both = np.array([point, made["constant"].solutions(params).points[0]])
    assert found["single or constant"] == pytest.approx(hypervolume(-both, [-1.0, -1.0]))
    assert made["single or constant"].solutions(params) is None


def test_all_nodes_are_judged_on_the_same_samples_on_request():
    own, everyone = ([task_of(Part(k, 3), judged_on=on) for k in range(3)] for on in ("own", "all"))
    assert sum(len(task.data["test"].x) for task in own) == len(everyone[0].data["test"].x)
    assert len({task.data["test"].x.numpy().tobytes() for task in everyone}) == 1


def test_dead_model_is_reported():
    task = task_of()
    params = trained(task)
    dead = task.layout.unflatten(params.copy())
    dead["body.2.bias"][:] = -1e3
    learner = task.learner(RandomStreams(0, "a"))
    found = [figures["test_dead"] for figures in learner.evaluate([params, task.layout.flatten(dead)], ["test"])]
    assert found == [0.0, 1.0]
    run = {"name": "praffl", "seed": 3, "answers": {"dead": 1}}
    (line,) = died([run, {"name": "other", "seed": 3}, {"name": "alive", "seed": 3, "answers": {}}])
    assert line.startswith("1 node of 'praffl', seed 3: its solutions do not depend on the preference")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preferences": 0}, "task.preferences must be from 1 to 4096, got 0"),
        ({"personal": -1}, "task.personal must be from 0 to 1000000, got -1"),
        ({"measured": 10**6}, "task.measured must be from 1 to 65536"),
        ({"gamma": 0.0}, "gamma must be more than 0"),
        ({"columns": {"age": "numeric"}}, "task.columns needs a table with a schema; 'synthetic' has none"),
        ({"model": "double"}, "task.model"),
        ({"sensitive": "age"}, "unknown sensitive attribute 'age'"),
    ],
)
def test_praffl_task_refuses_invalid_options(options, message):
    with pytest.raises(ConfigurationError, match=message):
        task_of(**options)


# On the wire


def small(part, seed):
    return make_task("praffl", SMALL, part, seed)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [lambda: Random(neighbours=2), CoordinatedFedAvg], ids=["gossip", "coordinated"])
def test_frames_contain_no_hypernetwork_or_preference(policy, monkeypatch):
    frames, trainings = [], []
    compute = PrafflLearner.compute

    def watched(self, query):
        result = compute(self, query)
        if isinstance(query, Train):
            trainings.append((self, query.round, result))
        return result

    monkeypatch.setattr(PrafflLearner, "compute", watched)

    async def scenario():
        federation = Federation(
            "abc", Settings(rounds=2, deadline=10.0), policy=policy, task="tests.p2pfl.fairness.test_praffl:small"
        )
        deliver = federation.network.deliver

        def overheard(link, frame):
            frames.append(bytes(frame or b""))
            deliver(link, frame)

        federation.network.deliver = overheard
        federation.start()
        await federation.done()

    run_virtually(scenario())
    wire = b"\0".join(frames)
    assert len(trainings) == 6
    # Frames contain the trained bodies, except those that a coordinator submits to itself.
    assert sum(parts_of(learner.task, params)[0].tobytes() in wire for learner, _, params in trainings) >= 4
    for learner, round, params in trainings:
        private = np.concatenate([parts_of(learner.task, model)[1] for model in (learner.task.initial(0), params)])
        for pair in pairwise(private):
            assert np.array(pair).tobytes() not in wire
        rng = learner.streams.generator(round, "train/0/personal preferences")
        drawn = rng.dirichlet([1.0, 1.0], (2 * 2, SMALL["preferences"])).reshape(-1, 2)  # passes, batches
        for preference in drawn:
            assert preference.tobytes() not in wire
            assert preference.astype(np.float32).tobytes() not in wire


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fedavg", "coordinated-fedavg", "dac", "matfl"])
def test_policies_average_body_and_keep_hypernetworks_private(policy):
    table = {"nodes": 3, "rounds": 2, "task": {"name": "praffl", **SMALL}, "policy": {"name": policy}}
    done = run(resolve(table, [], "test", ".").runs[0])
    shared = {node.me.params.tobytes() for node in done.nodes.values()}
    whole = {node.me.whole.tobytes() for node in done.nodes.values()}
    assert len(whole) == 3
    assert len(shared) == (1 if "fedavg" in policy else 3)
    assert all(0 < result["test_hypervolume"] < 1 for result in done.recorder.results.values())


# The report


@pytest.mark.slow
def test_report_shows_front_of_each_node_in_each_run(tmp_path):
    table = {"nodes": 2, "rounds": 1, "task": {"name": "praffl", **SMALL}, "policy": {"name": "local"}}
    rows = [{"name": "local"}, {"name": "all", "policy": {"name": "fedavg"}}, {"name": "plain", "task": {"model": "single"}}]
    file = resolve(table | {"run": rows}, [], "test", ".")
    runs = [run(scenario) for scenario in file.runs]
    results = [result_of(done) for done in runs]
    assert [("answers" in result.summary) for result in results] == [True, True, True]
    for done, result in zip(runs[:2], results[:2], strict=True):
        volumes = [each["test_hypervolume"] for each in done.recorder.results.values()]
        points = [np.array(node["points"]) for node in result.summary["answers"]["nodes"]]
        assert [hypervolume(-each, [-1.0, -1.0]) for each in points] == pytest.approx(volumes)
        assert all(len(non_dominated(-each)) == len(each) for each in points)
        node = done.nodes[min(done.nodes)]
        preference = result.summary["answers"]["nodes"][0]["preferences"][0]
        x, y, _ = node.task.data["test"]
        wrong = (node.task.model_for(node.result, preference)(x)[:, 0] > 0) != (y == 1)
        assert wrong.float().mean().item() == pytest.approx(points[0][0][0])
    write(tmp_path, file, results, summary := summarise(file, results))
    assert [sorted(row["extra_metrics"]) for row in summary["table"]] == [["smallest_disparity", "smallest_error"]] * 3
    figure = figures(report([tmp_path]))["solutions"]
    assert [view["label"] for view in figure["views"]] == ["node 0", "node 1"]
    for k, view in enumerate(figure["views"]):
        expected = [point for result in results for point in result.summary["answers"]["nodes"][k]["points"]]
        assert {point["run"] for point in view["points"]} == {"local", "all", "plain"}
        assert [point["label"] for point in view["points"] if point["run"] == "plain"] == ["single model"]
        assert [[point["x"], point["y"]] for point in view["points"]] == expected
        front = {tuple(point) for point in -non_dominated(-np.array(expected))}
        assert all(point["on_front"] == ((point["x"], point["y"]) in front) for point in view["points"])


# Answers


@pytest.mark.parametrize("weights", [[0.3], [0.3, 0.3, 0.4], [-0.5, 1.5], [0.5, 0.6], [float("nan"), 1.0]])
def test_model_for_invalid_preference_is_refused(weights):
    task = task_of()
    with pytest.raises(ConfigurationError, match="the preference must"):
        task.model_for(task.initial(0), weights)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Folder of a node after one round."""
    folder = tmp_path_factory.mktemp("node") / "alice"
    assert main(["init", str(folder), "--task", "praffl", "--policy", "local", "--listen", "127.0.0.1:0"]) == 0
    given = [item for key, value in SMALL.items() for item in ("--set", f"task.{key}={value}")]
    assert main(["run", str(folder), "--set", "rounds=1", "--set", "mdns=false", *given]) == 0
    return folder


def test_export_with_preference_writes_its_model(node, tmp_path):
    task = make_task("praffl", {}, Part(0, 1), 0)
    assert main(["export", str(node), str(tmp_path / "all.safetensors")]) == 0
    params = task.layout.flatten(load_file(tmp_path / "all.safetensors"))
    assert main(["export", str(node), str(tmp_path / "one.safetensors"), "--preference", "0.3,0.7"]) == 0
    module = task.model_for(params, [0.3, 0.7])
    tensors = load_file(tmp_path / "one.safetensors")
    assert tensors.keys() == module.state_dict().keys()
    assert all(np.array_equal(tensors[name], tensor.numpy()) for name, tensor in module.state_dict().items())
    with safe_open(tmp_path / "one.safetensors", "numpy") as file:
        assert file.metadata()["preference"] == "0.3,0.7"


@pytest.mark.slow
def test_onnx_export_with_preference_equals_module(node, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra test-all")
    task = make_task("praffl", {}, Part(0, 1), 0)
    assert main(["export", str(node), str(tmp_path / "all.safetensors")]) == 0
    assert main(["export", str(node), str(tmp_path / "one.onnx"), "--preference", "0.3,0.7"]) == 0
    module = task.model_for(task.layout.flatten(load_file(tmp_path / "all.safetensors")), [0.3, 0.7])
    x = task.data["test"].x
    session = onnxruntime.InferenceSession(tmp_path / "one.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["output"], {"input": x.numpy()})
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("model", ["--preference", "a,b"], "--preference must be numbers such as 0.3,0.7, got 'a,b'"),
        ("model", ["--preference", ""], "--preference must be numbers such as 0.3,0.7, got ''"),
        ("model", ["--preference", "0.3,0.3"], "the preference must be weights of 0 or more with the sum 1"),
        ("model", ["--preference", "1"], "the preference must have 2 weights, one for each objective, got 1"),
        ("model.onnx", [], "the task has a model for each preference; choose one with --preference, such as 0.3,0.7"),
    ],
)
def test_export_with_invalid_preference_is_refused(node, tmp_path, file, options, message, capsys):
    assert main(["export", str(node), str(tmp_path / file), *options]) == 2
    assert capsys.readouterr().err == f"{message}\n"
    assert not list(tmp_path.iterdir())


def test_export_preference_of_single_model_task_is_refused():
    with pytest.raises(ConfigurationError, match="has no model for each preference; leave out --preference"):
        encoder_for(make_task("digits", {}, Part(0, 1), 0), False, [0.3, 0.7])


# The paper's table


@pytest.mark.slow
@deep
def test_praffl_on_synthetic_beats_fedavg_front():
    """Row 3 of table 3 with one seed; the paper reports 0.763."""
    file = load("praffl-synthetic", ["form=short"])
    rows = {name: next(each for each in file.runs if each.name == name) for name in ("3 clients/praffl", "3 clients/fedavg")}
    rows["3 clients/fedavg"] = replace(rows["3 clients/fedavg"], rounds=2)  # as good as 10 rounds
    results = {name: run(scenario).recorder.results.values() for name, scenario in rows.items()}

    def mean(name, figure):
        return np.mean([result[f"test_{figure}"] for result in results[name]])

    assert mean("3 clients/praffl", "hypervolume") >= 0.8
    assert mean("3 clients/praffl", "hypervolume") >= mean("3 clients/fedavg", "hypervolume") + 0.15
    assert mean("3 clients/praffl", "smallest_disparity") <= 0.05
    assert mean("3 clients/praffl", "smallest_error") <= 0.16
