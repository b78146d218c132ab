"""Inversion: training images from the first released model, without a budget and with one."""

import pytest

from p2pfl.sim.audit.inversion import FOUND, image_shape, invert
from p2pfl.sim.audit.releases import Attacked, Watch, observe
from p2pfl.sim.scenario.scenario import resolve


def attacked(samples, **changes):
    task = {"name": "digits", "samples": samples, "shared": True}
    table = {"nodes": 8, "rounds": 1, "task": task, "policy": {"name": "random", "neighbours": 3}}
    job = resolve(table | changes, [], "test", ".").runs[0]
    releases = []
    watch = Watch(job.nodes, releases.append)
    observe(job, None, watch)
    return invert(Attacked(watch.tasks[0], job.seed), watch.tasks, releases, job.seed)


SEEKS = pytest.mark.slow  # with so few samples, guesses are sought by optimisation as well


@pytest.mark.parametrize(
    ("samples", "least"),
    [pytest.param(1, 1.0, marks=SEEKS), pytest.param(4, 0.9, marks=SEEKS), pytest.param(8, 0.6, marks=SEEKS), (20, 0.2)],
)
def test_rows_of_the_first_layer_give_back_images_of_nodes_with_few(samples, least):
    found, pictures = attacked(samples)
    rows = found["rows"]
    assert rows["images"] == 8 * samples
    assert rows["found"] >= least
    assert rows["found_by_chance"] < 0.02
    assert rows["auc_interval"][0] > 0.5
    assert pictures[0].own.shape == (8, 8)
    assert pictures[0].correlation > FOUND


@pytest.mark.parametrize("samples", [pytest.param(8, marks=SEEKS), 20, 60])
def test_budget_hides_images_from_inversion(samples):
    """No image above chance: strangers fit the guesses as well as training images do."""
    found, _ = attacked(samples, privacy={"epsilon": 8})
    for how in found.values():
        assert how["found"] == 0
        low, high = how["auc_interval"]
        assert low < 0.5 < high
        assert how["correlation"] == pytest.approx(how["correlation_by_chance"], abs=0.05)


@pytest.mark.slow
def test_secure_sum_gives_back_no_more_than_one_node_with_all_images_would():
    """Eight nodes of eight images: their mean is one update of 64, and no model of a node is seen."""
    policy = {"name": "coordinated-fedavg"}
    plain, secure = (attacked(8, policy=policy, secure_sums=on)[0]["rows"] for on in (False, True))
    assert plain["found"] > 0.6
    assert secure["found"] < 0.15
    assert secure["images"] == plain["images"] == 64
    assert secure["auc"] < plain["auc"] - 0.2


@pytest.mark.slow
def test_budget_hides_images_in_secure_sum():
    rows = attacked(8, policy={"name": "coordinated-fedavg"}, secure_sums=True, privacy={"epsilon": 8})[0]["rows"]
    low, high = rows["auc_interval"]
    assert rows["found"] <= rows["found_by_chance"]
    assert low < 0.5 < high


def test_images_have_a_height_and_a_width():
    assert image_shape((64,)) == (8, 8)
    assert image_shape((1, 28, 28)) == (28, 28)
    assert image_shape((5,)) is None
