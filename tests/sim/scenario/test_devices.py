"""Classes of devices in scenarios: who has which, and what a training takes."""

from collections import Counter

import numpy as np
import pytest

from p2pfl import simulate
from p2pfl.errors import ConfigurationError
from p2pfl.sim.report import figures
from p2pfl.sim.report.folder import Folder
from p2pfl.sim.report.series import gather
from p2pfl.sim.report.write import results_table
from p2pfl.sim.results import costs
from p2pfl.sim.results.results import result_of
from p2pfl.sim.scenario.availability import Presence
from p2pfl.sim.scenario.devices import LENET, SHIPPED, Speed, assign
from p2pfl.sim.scenario.scenario import resolve
from p2pfl.sim.simulation.plan import plan
from tests.support.simulated import run

SMALL = {"nodes": 4, "rounds": 2, "task": {"name": "concept-shift"}, "policy": {"name": "dsgd"}}
OWN = {"fast": {"samples": 200, "watts": 8.0}, "slow": {"samples": 50, "watts": 2.0, "idle": 0.5}}


def scenario(**changes):
    return resolve(SMALL | changes, [], "test", ".").runs[0]


def test_list_is_repeated_over_the_nodes():
    assert assign(("a", "b", "c"), 5, 0) == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize(("nodes", "counts"), [(8, {"a": 6, "b": 2}), (10, {"a": 8, "b": 2}), (1, {"a": 1})])
def test_shares_are_counts_with_the_greatest_remainders(nodes, counts):
    found = assign({"a": 3, "b": 1}, nodes, 0)
    assert Counter(found) == counts
    assert found == assign({"a": 3, "b": 1}, nodes, 0)


def test_shares_are_drawn_from_the_seed():
    assert len({tuple(assign({"a": 1, "b": 1}, 12, seed)) for seed in range(5)}) == 5


def test_shipped_figures_are_those_of_the_sources():
    # joules of the paper's 640 samples: its last column but three, in Wh
    for name, wh in (
        ("xiaomi-12-pro", 0.006532875),
        ("samsung-galaxy-s22-ultra", 0.005986076),
        ("xiaomi-poco-x3", 0.00851912),
    ):
        device = SHIPPED[name]
        assert device.values == LENET
        assert 640 / device.samples * device.watts / 3600 == pytest.approx(wh, rel=1e-6)


def test_training_takes_time_by_samples_and_by_the_size_of_the_model():
    found = plan(scenario(compute={"device": "raspberry-pi-4"}))
    task, device, speed = found.tasks[0], SHIPPED["raspberry-pi-4"], found.speeds[0]
    assert speed.sample_s == pytest.approx(task.layout.size / device.values / device.samples)
    assert speed.pass_s == pytest.approx(task.n_samples * speed.sample_s)
    own = plan(scenario(compute={"device": "fast", "devices": OWN, "slowdown": 3.0})).speeds[0]
    assert own.sample_s == pytest.approx(3 / 200)


def test_run_without_devices_is_unchanged_by_their_table():
    plain, tabled = run(scenario()), run(scenario(compute={"devices": OWN}))
    assert plain.plan.speeds[0] == Speed(1.0)
    assert plain.recorder.trace.digest() == tabled.recorder.trace.digest()
    assert "joules" not in result_of(plain).summary["cost"]


def test_joules_are_those_of_training_of_waiting_and_of_the_radio():
    result = result_of(run(scenario(compute={"device": ["fast", "slow"], "devices": OWN, "radio": 1e-3})))
    rounds, cost = result.rounds, result.summary["cost"]
    samples = result.summary["cost"]["samples"]["total"] // 8  # of a training
    fast, slow = samples / 200, samples / 50
    sent = (rounds["bytes_in"] + rounds["bytes_out"]).sum() * 1e-3
    assert cost["joules_by"] == {
        "training": pytest.approx(4 * fast * 8.0 + 4 * slow * 2.0),
        "idle": pytest.approx(0.0),  # the slow ones train all the time, the fast ones have no idle power
        "radio": pytest.approx(sent),
    }
    assert rounds["joules"].sum() == pytest.approx(cost["joules"]["total"])
    assert cost["devices"] == {"fast": 2, "slow": 2}
    assert result.summary["computed"] == "node by node: nodes differ in speed"


def test_waiting_node_uses_its_idle_power():
    speeds = [Speed(1.0, 0.1, 4.0, 1.0, "a"), Speed(1.0, 0.1, 4.0, 0.0, "b")]
    table = {
        **{"round": np.array([1, 1, 2, 2]), "node": np.array([0, 1, 0, 1]), "virtual_time": np.array([3.0, 3.0, 7.0, 7.0])},
        **{"bytes_in": np.zeros(4, int), "bytes_out": np.zeros(4, int), "train_s": np.array([1.0, 3.0, 1.0, 4.0])},
    }
    assert costs.parts(table, speeds, 0.0)["idle"].tolist() == [2.0, 0.0, 3.0, 0.0]
    there = Presence({"a": iter([(0.0, 2.0), (4.0, 5.0), (5.0, 99.0)])})
    idle = costs.parts(table, speeds, 0.0, lambda node, begin, end: end - begin if node else there.seconds("a", begin, end))
    assert idle["idle"].tolist() == [1.0, 0.0, 2.0, 0.0]


def test_one_device_for_all_runs_as_a_cohort_with_the_bits_of_single_nodes():
    together = result_of(run(scenario(compute={"device": "raspberry-pi-4"}), together=True))
    singly = result_of(run(scenario(compute={"device": "raspberry-pi-4"}, fidelity="wire")))
    assert together.summary["computed"] == "all nodes at once"
    for name in ("virtual_time", "trainings", "samples", "train_s"):
        order = [np.lexsort((of.rounds["node"], of.rounds["round"])) for of in (together, singly)]
        assert together.rounds[name][order[0]].tolist() == singly.rounds[name][order[1]].tolist(), name


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        ({"device": "raspberry-pi"}, "compute.device: unknown device 'raspberry-pi'; did you mean 'raspberry-pi-4'"),
        ({"device": []}, "compute.device must name one device or more"),
        ({"device": {"xiaomi-12-pro": 0.0}}, "compute.device must be a table of positive shares"),
        ({"devices": {"a": {"samples": 0, "watts": 1}}}, "compute.devices.a.samples must be a positive number"),
        ({"devices": {"a": {"samples": 1, "watts": -1}}}, "compute.devices.a.watts must be 0 or more"),
        ({"by_group": {"0": "nothing"}}, "compute.by_group: unknown device 'nothing'"),
        ({"radio": -1.0}, "compute.radio must be 0 or more"),
    ],
)
def test_invalid_devices_are_refused(compute, message):
    with pytest.raises(ConfigurationError, match=message):
        scenario(compute=compute)


def test_devices_by_group_must_cover_the_groups():
    with pytest.raises(ConfigurationError, match=r"compute.by_group: unknown group '9'"):
        plan(scenario(compute={"by_group": {"9": "raspberry-pi-4"}}))
    with pytest.raises(ConfigurationError, match=r"compute.by_group names no device for the group"):
        plan(scenario(compute={"by_group": {"0": "raspberry-pi-4"}}))
    found = plan(scenario(compute={"by_group": {"0": "xiaomi-12-pro"}, "device": "raspberry-pi-4"}))
    assert {speed.device for speed in found.speeds} == {"xiaomi-12-pro", "raspberry-pi-4"}


def test_scenario_without_devices_is_written_as_before(tmp_path):
    file = resolve(SMALL, [], "test", ".")
    (entry,) = file.to_toml()["run"]
    assert entry["compute"] == {"seconds": 1.0, "slowdown": 1.0}
    assert entry["budget"] == {"models": 0, "held": 0, "bytes": 0}
    with_devices = resolve(SMALL | {"compute": {"device": {"fast": 1, "slow": 1}, "devices": OWN}}, [], "test", ".")
    (entry,) = with_devices.to_toml()["run"]
    assert resolve(entry, [], "test", ".").runs[0].compute == with_devices.runs[0].compute


def test_report_and_notebook_show_energy_beside_bytes_only_with_watts(tmp_path):
    shown = {}
    for name, device in (("with", "slow"), ("without", "unpowered")):
        compute = {"device": device, "devices": OWN | {"unpowered": {"samples": 50, "watts": 0.0}}}
        results = simulate(SMALL | {"compute": compute}, progress=False, out=tmp_path / name)
        with Folder(tmp_path / name) as folder:
            series = gather([folder])
            (figure,) = figures.costs(series)
            axes = [view["label"] for view in figure["views"]]
            shown[name] = [">joules<" in results_table([folder], series), "energy of all nodes" in axes]
        shown[name] += [view._repr_html_().count("energy") == 1 for view in (results, results[0])]
    assert shown == {"with": [True, True, True, True], "without": [False, False, False, False]}
