"""Trackers with their real packages, offline, into a folder."""

import sys
from types import ModuleType

import pytest

from p2pfl.tracking.tracker import TrackedRun, Tracking, factories
from p2pfl.tracking.trackers import DEFAULTS

RUN = TrackedRun("dac/seed-0", "dac", "study", {"policy.name": "dac", "lr": 0.1, "note: ä": "x" * 600})
CURVE = {1: 0.25, 2: 0.5, 4: 0.8125}


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """Let no package find an account, a server, or settings of this machine."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "TRACKIO_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name, value in {**DEFAULTS, "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)


def record(name, folder):
    warnings = []
    tracking = Tracking(factories(name), folder, warnings.append)
    log = tracking.begin(RUN)
    for step, value in CURVE.items():
        log.log(step, {"merged/test_accuracy": value, "traffic/bytes": 10 * step})
    log.finish({"result/test_accuracy": 0.8125})
    tracking.close(120)
    assert [line for line in warnings if not line.startswith("waiting for the tracker ")] == []  # on a slow machine


@pytest.mark.slow
def test_tensorboard_reads_the_written_curves(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record("tensorboard", tmp_path)
    found = EventAccumulator(str(tmp_path / "tensorboard" / "dac" / "seed-0"))
    found.Reload()
    assert {event.step: event.value for event in found.Scalars("merged/test_accuracy")} == CURVE
    (result,) = found.Scalars("result/test_accuracy")
    assert (result.step, result.value) == (4, 0.8125)
    (settings,) = found.Tensors("settings/text_summary")
    assert b"| policy.name | dac |" in settings.tensor_proto.string_val[0]


@pytest.mark.slow
def test_mlflow_reads_the_written_run(tmp_path):
    record("mlflow", tmp_path)
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("study")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, run.data.tags["group"]) == ("dac/seed-0", "FINISHED", "dac")
    assert run.data.params == {"policy.name": "dac", "lr": "0.1", "note_ _": "x" * 500}
    assert run.data.metrics["result/test_accuracy"] == 0.8125
    history = client.get_metric_history(run.info.run_id, "merged/test_accuracy")
    assert {metric.step: metric.value for metric in history} == CURVE


@pytest.mark.slow
def test_wandb_writes_an_offline_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["p2pfl-node", "run", "--set", "broker=mqtts://ann:hidden-word@host"])
    record("wandb", tmp_path)
    import wandb

    wandb.teardown()  # its own process writes the file
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for text in (b"dac/seed-0", b"study", b"policy.name", b"merged/test_accuracy", b"0.8125", b"result/test_accuracy"):
        assert text in content
    assert b"hidden-word" not in content


@pytest.mark.slow
def test_mlflow_server_that_is_down_gives_one_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    warnings = []
    tracking = Tracking(factories("mlflow"), tmp_path, warnings.append)
    tracking.begin(RUN).log(1, {"a": 1.0})
    tracking.close(120)
    (warning,) = warnings
    assert warning.startswith("the tracker mlflow has failed: API request to http://127.0.0.1:9/")
    assert warning.endswith("; the run continues without it")


class FakeRun:
    """The run of Trackio: figures with a step, and an end."""

    def __init__(self, **options):
        self.options, self.logged, self.ended = options, [], 0

    def log(self, metrics, step=None):
        self.logged.append((step, metrics))

    def finish(self):
        self.ended += 1


def test_trackio_receives_figures_with_their_round(tmp_path, monkeypatch):
    runs, module = [], ModuleType("trackio")

    def init(project, name=None, group=None, config=None):
        runs.append(FakeRun(project=project, name=name, group=group, config=config))
        return runs[0]

    module.init = init
    monkeypatch.setitem(sys.modules, "trackio", module)
    monkeypatch.setattr("p2pfl.tracking.tracker.find_spec", lambda name: object())
    record("trackio", tmp_path)
    (run,) = runs
    assert run.options == {"project": "study", "name": "dac/seed-0", "group": "dac", "config": dict(RUN.config)}
    assert run.logged[0] == (1, {"merged/test_accuracy": 0.25, "traffic/bytes": 10.0})
    assert run.logged[-1] == (4, {"result/test_accuracy": 0.8125})
    assert run.ended == 1
