"""Tools for a node: export of its model, and its metrics."""

import csv
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors import safe_open
from safetensors.numpy import load_file

from p2pfl.errors import ConfigurationError
from p2pfl.node.checkpoint import Checkpoint, FileStore
from p2pfl.node.cli.export import Exported, encoder_for, export, format_of, newest, write
from p2pfl.node.early_stopping import EarlyStopping
from p2pfl.node.federation import agreement, membership_changes
from p2pfl.node.folder import config
from p2pfl.node.status import endpoints as metrics
from p2pfl.node.status.text import describe
from p2pfl.parameters import Layout
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, make_task

LAYOUT = Layout((("weight", (2, 3)), ("bias", (2,)), ("scale", ())), 8)
BEST, LAST = np.arange(9, dtype=np.float32), np.arange(9, dtype=np.float32) * 10


def checkpoint(layout=LAYOUT, params=LAST, best=BEST):
    stopping = EarlyStopping(0)
    if best is not None:
        stopping.see(3, best, 0.5)
    return Checkpoint(
        name="alice",
        seed=0,
        layout=layout.fingerprint,
        round=4,
        params=params.tobytes(),
        early_stopping=stopping.state(),
        unevaluated={},
        unevaluated_round=0,
        policy="p2pfl.policies.dac:Dac",
        policy_state=b"\x80",
        outbox=[],
        final=False,
    )


def test_write_exports_best_model_by_tensor(tmp_path):
    target = tmp_path / "model.safetensors"
    assert write(target, checkpoint(), LAYOUT, "home") == (3, "merged", {})
    tensors = load_file(target)
    assert {name: array.shape for name, array in tensors.items()} == dict(LAYOUT.shapes)
    assert np.array_equal(LAYOUT.flatten(tensors), BEST)
    with safe_open(target, "numpy") as file:
        assert file.metadata() == {
            "name": "alice",
            "round": "3",
            "stage": "merged",
            "federation": "home",
            "fingerprint": LAYOUT.fingerprint.hex(),
        }


def test_export_describes_model_and_losses_of_both_stages():
    losses = {"trained": (0.634, 9), "merged": (0.512, 7)}
    assert Exported(7, "merged", losses).describe() == (
        "the merged model of round 7 (lowest validation loss: trained 0.634 in round 9, merged 0.512 in round 7)"
    )
    assert Exported(9, "trained", losses).describe() == (
        "the trained model of round 9 (the policy reports trained models; "
        "lowest validation loss: trained 0.634 in round 9, merged 0.512 in round 7)"
    )
    assert Exported(7, "merged", {"merged": (0.512, 7)}).describe() == "the model of round 7"
    alone = {"trained": (0.512, 7), "merged": (0.512, 7)}  # a node that trains alone merges nothing
    assert Exported(7, "merged", alone).describe() == "the model of round 7"


def test_write_returns_losses_of_both_stages(tmp_path):
    kept = checkpoint()
    stages = {"trained": [0.634, 9], "merged": [0.512, 7]}
    kept = msgspec.structs.replace(kept, early_stopping=kept.early_stopping | {"by_stage": stages})
    assert write(tmp_path / "model.safetensors", kept, LAYOUT, "home") == (
        3,
        "merged",
        {"trained": (0.634, 9), "merged": (0.512, 7)},
    )


def test_write_without_evaluation_exports_last_model(tmp_path):
    target = tmp_path / "model.safetensors"
    assert write(target, checkpoint(best=None), LAYOUT, "home") == (4, "", {})
    assert np.array_equal(LAYOUT.flatten(load_file(target)), LAST)


def test_write_overwrites_file_only_with_force(tmp_path):
    target = tmp_path / "model.safetensors"
    target.write_text("mine")
    with pytest.raises(ConfigurationError, match="exists; use --force to overwrite it"):
        write(target, checkpoint(), LAYOUT, "home")
    assert target.read_text() == "mine"
    write(target, checkpoint(), LAYOUT, "home", force=True)
    assert np.array_equal(LAYOUT.flatten(load_file(target)), BEST)


def test_write_refuses_model_of_another_task(tmp_path):
    with pytest.raises(ConfigurationError, match="the task was changed since the checkpoint of alice was written"):
        write(tmp_path / "model", checkpoint(), Layout((("weight", (9,)),), 9), "home")
    with pytest.raises(ConfigurationError, match=r"cannot write .*: No such file"):
        write(tmp_path / "none" / "model", checkpoint(), LAYOUT, "home")
    assert not list(tmp_path.iterdir())


def test_export_reads_model_from_node_folder(tmp_path):
    folder = tmp_path / "alice"
    config.create(folder, "alice")
    with pytest.raises(ConfigurationError, match="has no checkpoint: the node has not finished a round yet"):
        newest(folder)
    task = make_task("digits", {}, Part(0, 1), 0)
    model = task.initial(0)
    FileStore(folder / config.CHECKPOINT).save(checkpoint(task.layout, model, model))
    assert export(folder, tmp_path / "model.safetensors").round == 3
    assert task.layout.flatten(load_file(tmp_path / "model.safetensors")).tobytes() == model.tobytes()

    store = FileStore(folder / config.CHECKPOINT)  # a damaged newest one is left to the node, which may be running
    store.save(checkpoint(task.layout, model, model))
    store.path.write_bytes(store.path.read_bytes()[:-1])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert export(folder, tmp_path / "again.safetensors").round == 3
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "given", "format"),
    [
        ("model", "", "safetensors"),
        ("model.safetensors", "", "safetensors"),
        ("model.ONNX", "", "onnx"),
        ("model", "onnx", "onnx"),
        ("model.bin", "safetensors", "safetensors"),
    ],
)
def test_format_of_export_follows_option_or_extension(name, given, format):
    assert format_of(Path(name), given) == format


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("x.pt", "", "cannot write x.pt: p2pfl-node exports .safetensors and .onnx, not .pt; use one of these extensions"),
        ("x.onnx", "safetensors", "x.onnx has the extension of onnx, but --format is safetensors; change one of them"),
    ],
)
def test_export_refuses_extension_of_another_format(tmp_path, name, given, message):
    with pytest.raises(ConfigurationError) as error:
        export(tmp_path / "alice", Path(name), format=given)
    assert str(error.value).startswith(message)


def test_export_of_member_names_its_federation(tmp_path):
    folder, target = tmp_path / "alice", tmp_path / "model.safetensors"
    config.create(folder, "alice")
    task = make_task("digits", {}, Part(0, 1), 0)
    tables = agreement.draft("home", config.load(folder), task)
    federation = membership_changes.create_federation(folder, tables, tmp_path / "backup.pem")
    FileStore(folder / config.CHECKPOINT).save(checkpoint(task.layout, task.initial(0), None))
    export(folder, target)
    with safe_open(target, "numpy") as file:
        assert file.metadata()["federation"] == f"home ({federation.id.hex()})"


# Metrics

STATE = {
    "name": "alice",
    "state": "running",
    "federation": "home",
    "task": "digits",
    "policy": "dac",
    "version": "1.0",
    "round": 4,
    "stored": 3,
    "rounds": 10,
    "metric": "top-1 accuracy",
    "history": [
        {"round": 3, "validation": 0.5, "test": 0.25},
        {
            "round": 4,
            "seconds": 1.5,
            "models": 1,
            "bytes_in": 350,
            "bytes_out": 700,
            "weights": {"alice": 0.75, "bob": 0.25},
            "validation": None,
        },
    ],
    "peers": [
        {"name": "bob", "state": "connected", "round": 4, "staleness": 0.5, "bytes_in": 300, "bytes_out": 700},
        {
            "name": "carol",
            "state": "suspected",
            "round": 2,
            "staleness": None,
            "bytes_in": 59,
            "bytes_out": 80,
            "offences": {"malformed": 2},
        },
    ],
    "budget": {"models": {"limit": 2, "used": 1}},
    "refused_by_budget": 6,
    "traffic": {"sent": {"models": 2, "update": 700, "control": 80}, "received": {"models": 1, "update": 350, "control": 9}},
    "rejected": {"wrong signature": 5},
    "faults": {"broker": 2},
    "suspicious": {"far ahead": {"carol": 8}},
    "deadlines_expired": 3,
    "disk": "No space left on device",
}


def read(state):
    """Return {(name, labels): value} as Prometheus would read it."""
    families = text_string_to_metric_families(metrics.text(state).decode())
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_describe_prints_no_control_characters():
    peer = {"name": "bob", "state": "suspected", "reason": "\x1b]0;owned\x07", "link": "", "bytes_in": 0, "bytes_out": 0}
    state = {"state": "running", "reason": "\x1b[2J\u202e", "broker": "\x9b2J", "rejected": {"\x1b": 1}, "history": []}
    lines = describe(state | {"peers": [peer | {"round": 1, "addresses": {}, "staleness": None, "offences": {}}]})
    assert any("bob" in line for line in lines)
    assert any("2J" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_metrics_match_status():
    assert read(STATE) == {
        ("p2pfl_info", ("home", "alice", "dac", "digits", "1.0")): 1,
        ("p2pfl_state", ("starting",)): 0,
        ("p2pfl_state", ("waiting",)): 0,
        ("p2pfl_state", ("running",)): 1,
        ("p2pfl_state", ("serving",)): 0,
        ("p2pfl_state", ("finished",)): 0,
        ("p2pfl_state", ("stopped",)): 0,
        ("p2pfl_state", ("failed",)): 0,
        ("p2pfl_state", ("revoked",)): 0,
        ("p2pfl_round", ()): 4,
        ("p2pfl_stored_round", ()): 3,
        ("p2pfl_rounds", ()): 10,
        ("p2pfl_traffic_bytes_total", ("sent", "update")): 700,
        ("p2pfl_traffic_bytes_total", ("sent", "control")): 80,
        ("p2pfl_traffic_bytes_total", ("received", "update")): 350,
        ("p2pfl_traffic_bytes_total", ("received", "control")): 9,
        ("p2pfl_models_total", ("sent",)): 2,
        ("p2pfl_models_total", ("received",)): 1,
        ("p2pfl_rejected_total", ("wrong signature",)): 5,
        ("p2pfl_faults_total", ("broker",)): 2,
        ("p2pfl_suspicious_total", ("far ahead", "carol")): 8,
        ("p2pfl_deadlines_expired_total", ()): 3,
        ("p2pfl_distrust", ()): 0,
        ("p2pfl_peers", ("connecting",)): 0,
        ("p2pfl_peers", ("connected",)): 1,
        ("p2pfl_peers", ("behind",)): 0,
        ("p2pfl_peers", ("suspected",)): 1,
        ("p2pfl_peers", ("not connected",)): 0,
        ("p2pfl_peers", ("done",)): 0,
        ("p2pfl_peers", ("left out",)): 0,
        ("p2pfl_peer_state", ("bob", "connecting")): 0,
        ("p2pfl_peer_state", ("bob", "connected")): 1,
        ("p2pfl_peer_state", ("bob", "behind")): 0,
        ("p2pfl_peer_state", ("bob", "suspected")): 0,
        ("p2pfl_peer_state", ("bob", "not connected")): 0,
        ("p2pfl_peer_state", ("bob", "done")): 0,
        ("p2pfl_peer_state", ("bob", "left out")): 0,
        ("p2pfl_peer_state", ("carol", "connecting")): 0,
        ("p2pfl_peer_state", ("carol", "connected")): 0,
        ("p2pfl_peer_state", ("carol", "behind")): 0,
        ("p2pfl_peer_state", ("carol", "suspected")): 1,
        ("p2pfl_peer_state", ("carol", "not connected")): 0,
        ("p2pfl_peer_state", ("carol", "done")): 0,
        ("p2pfl_peer_state", ("carol", "left out")): 0,
        ("p2pfl_peer_round", ("bob",)): 4,
        ("p2pfl_peer_round", ("carol",)): 2,
        ("p2pfl_peer_staleness_seconds", ("bob",)): 0.5,
        ("p2pfl_peer_received_bytes_total", ("bob",)): 300,
        ("p2pfl_peer_received_bytes_total", ("carol",)): 59,
        ("p2pfl_peer_sent_bytes_total", ("bob",)): 700,
        ("p2pfl_peer_sent_bytes_total", ("carol",)): 80,
        ("p2pfl_peer_offences_total", ("malformed", "carol")): 2,
        ("p2pfl_chosen_weight", ("alice",)): 0.75,
        ("p2pfl_chosen_weight", ("bob",)): 0.25,
        ("p2pfl_round_seconds", ()): 1.5,
        ("p2pfl_round_models", ()): 1,
        ("p2pfl_round_bytes", ("received",)): 350,
        ("p2pfl_round_bytes", ("sent",)): 700,
        ("p2pfl_budget_limit", ("models",)): 2,
        ("p2pfl_budget_used", ("models",)): 1,
        ("p2pfl_budget_refused_total", ()): 6,
        ("p2pfl_trainings_refused_total", ()): 0,
        ("p2pfl_disk_problem", ()): 1,
        ("p2pfl_broker_problem", ()): 0,
        ("p2pfl_validation_top_1_accuracy", ()): 0.5,
        ("p2pfl_test_top_1_accuracy", ()): 0.25,
    }


def test_metrics_omit_values_not_yet_known():
    before = read({})
    assert before["p2pfl_round", ()] == before["p2pfl_disk_problem", ()] == before["p2pfl_state", ("running",)] == 0
    assert not [name for name, _ in before if "validation" in name or "rejected" in name or "budget_limit" in name]
    assert read({"peers": [{"name": "bob", "state": "sleeping"}]})["p2pfl_peers", ("sleeping",)] == 1


def test_metrics_escape_foreign_names_in_labels():
    name = 'x"} 1\np2pfl_round 99\n\\'
    figures = read({"round": 1, "peers": [{"name": name, "state": "connected"}], "rejected": {name: 2}})
    assert figures["p2pfl_round", ()] == 1
    assert figures["p2pfl_peer_state", (name, "connected")] == 1
    assert figures["p2pfl_rejected_total", (name,)] == 2


@pytest.mark.parametrize("numbers", [False, True], ids=["classes", "numbers"])
def test_exported_row_encoding_and_model_give_the_nodes_own_figure(tmp_path, monkeypatch, numbers):
    """Read the rows with the csv module and the file alone, and compare with what the node reports."""
    rng = np.random.default_rng(5)
    monkeypatch.chdir(tmp_path)
    rows = ["age,ward,dose,sex,outcome"]
    for k in range(120):
        age, ward, dose = rng.normal(50, 20), ["west", "north", "east"][k % 3], "" if k % 7 == 0 else f"{rng.normal():.3f}"
        rows.append(f"{age:.2f},{ward},{dose},{'fm'[k % 2]},{age * 2 if numbers else ('no', 'yes')[age > 50]}")
    Path("rows.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    options = {
        "data": "rows.csv",
        "categories": {"sex": ["m", "f"], "ward": ["north", "east", "west"]},
        "missing": "mean",
        "standardize": "local",
        "test": 0.0,
    } | ({} if numbers else {"labels": ["yes", "no"]})
    task = make_task("regression" if numbers else "classification", options, Part(0, 1), 0)
    params = task.initial(3)
    (reported,) = task.learner(RandomStreams(0, "p2pfl")).evaluate([params], ["validation"])
    about = {"row_encoding": json.dumps(task.row_encoding)}
    Path("model.safetensors").write_bytes(encoder_for(task, onnx=False, preference=())(params, about))

    tensors = load_file("model.safetensors")
    with safe_open("model.safetensors", "numpy") as file:
        encoding = json.loads(file.metadata()["row_encoding"])
    with Path("rows.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    x = np.array([[value_of(row, each) for each in encoding["inputs"]] for row in table], np.float32)
    outputs = np.maximum(x @ tensors["0.weight"].T + tensors["0.bias"], 0) @ tensors["2.weight"].T + tensors["2.bias"]
    target = encoding["target"]
    labels = [row[target["column"]] for row in table]
    held_out = [k for k, row in enumerate(x.tolist()) if row in np.asarray(task.data["validation"][0]).tolist()]
    assert len(held_out) == 12
    if numbers:
        errors = outputs[:, 0] - (np.array(labels, float) - target["centre"]) / target["scale"]
        assert np.mean(errors[held_out] ** 2) == pytest.approx(reported["validation_mse"], rel=1e-4)
    else:
        right = [target["labels"][outputs[k].argmax()] == labels[k] for k in held_out]
        assert np.mean(right) == pytest.approx(reported["validation_accuracy"])
        assert 0 < np.mean(right) < 1


def value_of(row, each):
    text = row[each["column"]]
    value = float(text == each["category"]) if "category" in each else float(text) if text else each["fill"]
    return (value - each["mean"]) / each["scale"]
