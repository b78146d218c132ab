"""Image task on scikit-learn's digits, which need no file."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from p2pfl.data import image_sets as sets
from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner, SequentialLearner
from p2pfl.learning.image_models import MODELS
from p2pfl.learning.kernels.dense_kernel import DenseKernel
from p2pfl.learning.modules import layout_of
from p2pfl.node.federation import loading
from p2pfl.node.folder import config
from p2pfl.queries import Evaluate, Loss, NodeQuery, Train
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, make_task

CNN = {"name": "cnn", "channels": [4, 5], "kernel": 2, "dense": [10]}
REAL = os.environ.get("P2PFL_DATA", "")


def make(index=0, count=4, seed=0, **options):
    return make_task("images", options, Part(index, count), seed)


def nodes(count, seed=0, **options):
    return [make(k, count, seed, **options) for k in range(count)]


def images_of(task, split):
    x, y = task.data[split]
    return {(image.tobytes(), int(label)) for image, label in zip(x.numpy(), y, strict=True)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": CNN, "optimizer": {"name": "adam", "lr": 0.01}},
        {"partition": {"name": "dirichlet", "alpha": 0.1}, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}},
        {"partition": {"name": "quantity", "alpha": 0.2}, "shift": {"name": "rotation", "angles": [0, 30, 90]}},
        {"shift": {"name": "label-permutation", "nodes": 2}, "optimizer": {"name": "sgd", "weight_decay": 0.001}},
        {"shift": {"name": "concept", "groups": 2}, "model": {"name": "linear"}},
    ],
)
def test_image_task_stacked_equals_one_by_one(options):
    learners = [task.learner(RandomStreams(0, f"node-{k}")) for k, task in enumerate(nodes(5, samples=60, **options))]
    one, all_ = SequentialLearner(learners), BatchedLearner(learners)
    model = learners[0].task.initial(0)
    jobs = [NodeQuery(k, Train(model, 1, epochs=2)) for k in range(5)]
    expected, found = one.compute(jobs), all_.compute(jobs)
    for a, b in zip(expected, found, strict=True):
        assert np.abs(a - b).max() < 1e-5 * np.abs(a).max()
    losses = [NodeQuery(k, Loss([expected[k], model])) for k in range(5)]
    for a, b in zip(one.compute(losses), all_.compute(losses), strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    asked = [NodeQuery(k, Evaluate([expected[k]], ("train", "test"))) for k in range(5)]
    for (a,), (b,) in zip(one.compute(asked), all_.compute(asked), strict=True):
        assert a == pytest.approx(b, rel=1e-5)


def test_image_mlp_uses_the_dense_kernel():
    learners = [
        task.learner(RandomStreams(0, f"node-{k}"))
        for k, task in enumerate(nodes(2, model={"name": "mlp", "hidden": [8, 8]}))
    ]
    assert isinstance(BatchedLearner(learners).kernel, DenseKernel)


def test_image_splits_of_nodes_are_disjoint():
    parts = [images_of(task, split) for task in nodes(5) for split in ("train", "validation")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(sets.load("digits").train.y)
    assert not set.union(*parts) & images_of(make(), "test")


def test_image_task_depends_only_on_seed():
    options = {"augment": {"shift": 1, "rotation": 15, "noise": 0.1}, "partition": {"name": "dirichlet", "alpha": 0.5}}
    one, again, other = (make(1, seed=seed, **options) for seed in (1, 1, 2))
    for split in ("train", "validation", "test"):
        assert torch.equal(one.data[split].x, again.data[split].x)
        assert torch.equal(one.data[split].y, again.data[split].y)
    assert one.initial(1).tobytes() == again.initial(1).tobytes()
    assert images_of(one, "train") != images_of(other, "train")


def test_image_splits_have_requested_sizes():
    task = make(samples=200, validation=100, test=50)
    assert [len(task.data[split].y) for split in ("train", "validation", "test")] == [200, 100, 50]
    assert task.n_samples == 200
    assert set(make(validation=0).data) == {"train", "test"}
    task = make(samples=80, validation=0.2)
    assert [len(task.data[split].y) for split in ("train", "validation")] == [80, 20]


def test_test_labels_follow_the_training_labels():
    for task in nodes(6, partition={"name": "dirichlet", "alpha": 0.3}, test=40):
        train, test = (np.bincount(task.data[split].y, minlength=10) for split in ("train", "test"))
        assert np.abs(test - train * test.sum() / train.sum()).max() < 1


def test_image_pixels_are_normalised():
    x = torch.cat([task.data["train"].x for task in nodes(2)])
    assert x.mean().abs() < 0.05
    assert (x.std() - 1).abs() < 0.05


# Groups


def test_public_info_has_group_only_with_a_shift():
    tasks = nodes(8, shift={"name": "rotation", "angles": [0, 180, 90, 270], "sizes": [24, 6, 5, 5]})
    assert [task.public_info["group"] for task in tasks] == [0, 0, 0, 0, 0, 1, 2, 3]
    assert make().public_info == {}


def test_rotation_shift_rotates_images_of_group():
    turned, plain = (make(1, 2, shift={"name": "rotation", "angles": [0, angle]}) for angle in (90, 0))
    for split in ("train", "validation", "test"):
        assert torch.equal(turned.data[split].x, torch.rot90(plain.data[split].x, 1, (2, 3)))
        assert torch.equal(turned.data[split].y, plain.data[split].y)


def test_label_permutation_is_the_same_in_all_splits():
    tasks = nodes(5, shift={"name": "label-permutation", "share": 0.4})
    assert [task.public_info["group"] for task in tasks] == [0, 0, 0, 1, 1]
    plain = nodes(5)
    renamed = set()
    for k, (task, true) in enumerate(zip(tasks, plain, strict=True)):
        for split in ("train", "validation", "test"):
            pairs = set(zip(true.data[split].y.tolist(), task.data[split].y.tolist(), strict=True))
            if k < 3:
                assert all(a == b for a, b in pairs)
            else:
                renamed |= pairs
    assert len(renamed) == 10
    assert any(a != b for a, b in renamed)


def test_own_label_permutations_differ_between_nodes():
    tasks = nodes(5, shift={"name": "label-permutation", "nodes": 3, "permutation": "own"})
    assert [task.public_info["group"] for task in tasks] == [0, 0, 1, 2, 3]
    renamed = [
        tuple(sorted(set(zip(a.data["train"].y.tolist(), b.data["train"].y.tolist(), strict=True))))
        for a, b in zip(nodes(5), tasks, strict=True)
    ]
    assert len(set(renamed[2:])) == 3


def test_label_groups_have_own_classes_in_every_split():
    tasks = nodes(5, shift={"name": "label-groups", "groups": [[0, 1, 2], [3, 4]], "sizes": [3, 2]})
    for task in tasks:
        expected = {0: {0, 1, 2}, 1: {3, 4}}[task.public_info["group"]]
        assert all(set(task.data[split].y.tolist()) == expected for split in ("train", "validation", "test"))


def write_idx(folder, x, y):
    folder.mkdir(exist_ok=True)
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", x), ("labels-idx1", y)):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + array.astype(np.uint8).tobytes())


def test_domain_shift_divides_nodes_among_data_sets(tmp_path):
    write_idx(tmp_path / "blank", np.arange(40 * 64).reshape(40, 8, 8) % 251, np.arange(40) % 12)
    options = {"data": ["digits", "blank"], "root": str(tmp_path), "shift": {"name": "domain", "sizes": [2, 1]}}
    tasks = nodes(3, **options)
    assert [task.public_info["group"] for task in tasks] == [0, 0, 1]
    assert max(int(task.data["train"].y.max()) for task in tasks[:2]) == 9
    assert len(tasks[2].data["train"].y) == 32
    assert {task.layout.shapes[-1] for task in tasks} == {("3.bias", (12,))}  # the classes of both data sets
    apart = nodes(3, **options | {"shift": {"name": "domain", "sizes": [2, 1], "labels": "apart"}})
    assert [(int(task.data["test"].y.min()), int(task.data["test"].y.max())) for task in apart] == [(0, 9), (0, 9), (12, 23)]
    assert {task.layout.shapes[-1] for task in apart} == {("3.bias", (24,))}
    write_idx(tmp_path / "wide", np.zeros((12, 8, 9)), np.arange(12))
    with pytest.raises(
        ConfigurationError, match=r"data sets of one shape, got \{'digits': \[1, 8, 8\], 'wide': \[1, 8, 9\]\}"
    ):
        make(**options | {"data": ["digits", "wide"]})


# Extremes


@pytest.mark.slow
@pytest.mark.parametrize(
    "partition",
    [
        {"name": "iid"},
        {"name": "dirichlet", "alpha": 0.01},
        {"name": "pathological", "classes": 1},
        {"name": "pathological", "classes": 99},
        {"name": "quantity", "alpha": 0.05},
    ],
)
def test_node_with_few_images_is_trained_and_tested(partition):
    count = len(sets.load("digits").train.y) - 100
    tasks = [make(k, count, partition=partition) for k in (0, 1, count // 2, count - 1)]
    for task in tasks:
        assert len(task.data["train"].y) >= 1
        assert len(task.data["validation"].y) >= 1
        assert len(task.data["test"].y) >= 1
        assert set(task.data["validation"].y.tolist()) <= set(range(10))
        assert not images_of(task, "train") & images_of(task, "validation")
    learners = [task.learner(RandomStreams(0, f"node-{k}")) for k, task in enumerate(tasks)]
    model = tasks[0].initial(0)
    for trained in BatchedLearner(learners).compute([NodeQuery(k, Train(model, 1)) for k in range(4)]):
        assert np.isfinite(trained).all()
    assert np.isfinite(BatchedLearner(learners).compute([NodeQuery(k, Loss([model])) for k in range(4)])).all()


@pytest.mark.slow
def test_one_image_per_node_leaves_no_validation_data():
    count = len(sets.load("digits").train.y)
    task = make(3, count)
    assert [len(task.data[split].y) for split in ("train", "validation")] == [1, 0]
    with pytest.raises(ConfigurationError, match=f"{count + 1} nodes are too many for the data: node {count} has no image"):
        make(3, count + 1)


def test_fewer_nodes_than_groups_fill_first_group():
    tasks = nodes(2, shift={"name": "rotation", "angles": [0, 90, 180], "sizes": [8, 1, 1]})
    assert [task.public_info["group"] for task in tasks] == [0, 0]


# Shared and drawn data


def test_nodes_with_equal_test_samples_share_tensors():
    options = {"shift": {"name": "label-groups", "groups": [[3]]}}
    one, other = make(0, 2, **options), make(1, 2, **options)
    assert one.data["test"].x is other.data["test"].x
    assert one.data["test"].y is other.data["test"].y
    assert one.data["train"].x is not other.data["train"].x


def test_augment_changes_images_but_not_labels():
    plain, harder = make(), make(augment={"shift": 1, "rotation": 20, "noise": 0.1})
    for split in ("train", "validation", "test"):
        assert torch.equal(plain.data[split].y, harder.data[split].y)
        assert (plain.data[split].x != harder.data[split].x).any(1).flatten(1).any(1).all()


def test_kaiming_start_has_uniform_weights_and_zero_biases():
    model = {"name": "cnn", "channels": [4, 5], "kernel": 2, "dense": [40], "start": "kaiming"}
    made = make_task("images", {"model": model}, Part(0, 5), 0)
    tensors = made.layout.unflatten(made.initial(0))
    for name, tensor in tensors.items():
        if name.endswith("bias"):
            assert not tensor.any()
        else:
            bound = np.sqrt(6 / tensor[0].size)
            assert bound * 0.8 < np.abs(tensor).max() <= bound


def test_mlp_with_dropout_has_layout_of_one_without():
    kinds = [
        make_task("images", {"model": {"name": "mlp", "hidden": [9], **more}}, Part(0, 5), 0)
        for more in ({}, {"dropout": 0.2})
    ]
    assert [sorted(shape for _, shape in kind.layout.shapes) for kind in kinds] == [[(9,), (9, 64), (10,), (10, 9)]] * 2
    with pytest.raises(ConfigurationError, match=r"dropout must be from 0 to below 1, got 1\.5"):
        make_task("images", {"model": {"name": "mlp", "dropout": 1.5}}, Part(0, 5), 0)


def test_initial_model_is_read_from_file(tmp_path):
    layout = make().layout
    params = np.arange(layout.size, dtype=np.float32)
    save_file(layout.unflatten(params), tmp_path / "start.safetensors")
    task = make(initial=str(tmp_path / "start.safetensors"))
    assert (task.initial(0) == params).all()
    assert (task.initial(1) == params).all()


def test_initial_model_with_new_head_draws_last_layer(tmp_path):
    layout = make().layout
    params = np.arange(1, layout.size + 1, dtype=np.float32)
    body = {name: tensor for name, tensor in layout.unflatten(params).items() if not name.startswith("3.")}
    counters = {"9.num_batches_tracked": np.array(7)}
    save_file(body | counters | {"3.weight": np.zeros((1000, 64), np.float32)}, tmp_path / "body.safetensors")
    tuned, plain = make(initial=str(tmp_path / "body.safetensors"), head="new"), make()
    for seed in (0, 1):
        start, drawn = layout.unflatten(tuned.initial(seed)), layout.unflatten(plain.initial(seed))
        assert all((start[name] == body[name]).all() for name in body)
        assert all((start[name] == drawn[name]).all() for name in ("3.weight", "3.bias"))
    with pytest.raises(ConfigurationError, match=r"3.weight is F32 \[1000, 64\]"):
        make(initial=str(tmp_path / "body.safetensors"))


def test_resnet18_has_the_torchvision_layout():
    layout = layout_of(MODELS["resnet18"]((3, 32, 32), 1000))
    shapes = dict(layout.shapes)
    assert layout.n_trained == 11_689_512
    assert shapes["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert shapes["layer4.1.bn2.running_var"] == (512,)
    assert len(shapes) == 102  # 20 integer counters stay local
    with pytest.raises(ConfigurationError, match="needs images of 32 x 32 pixels or more, got 28 x 28"):
        MODELS["resnet18"]((1, 28, 28), 10)


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: without(t, "1.bias"), "lacks the tensor 1.bias; it has 1.weight, 3.bias, 3.weight"),
        (lambda t: t | {"1.bias": np.zeros(65, np.float32)}, r"1.bias is F32 \[65\], but the model has F32 \[64\]"),
        (lambda t: t | {"1.bias": np.zeros(64)}, r"1.bias is F64 \[64\]"),
        (lambda t: t | {"more": np.zeros(1, np.float32)}, "has the tensor more, but the model has not"),
        (lambda t: t | {"1.bias": np.full(64, np.nan, np.float32)}, "some values are not finite"),
    ],
)
def test_initial_model_of_other_layout_is_refused(tmp_path, change, message):
    layout = make().layout
    path = tmp_path / "start.safetensors"
    save_file(change(layout.unflatten(np.zeros(layout.size, np.float32))), path)
    with pytest.raises(ConfigurationError, match=message):
        make(initial=str(path))


def test_initial_model_from_invalid_file_is_refused(tmp_path):
    path = tmp_path / "start.safetensors"
    with pytest.raises(ConfigurationError, match="No such file"):
        make(initial=str(path))
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ConfigurationError, match="damaged, or not a safetensors file"):
        make(initial=str(path))


# Invalid options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": {"name": "dirichle"}}, "unknown task.partition 'dirichle'; did you mean 'dirichlet'"),
        ({"partition": {"name": "dirichlet"}}, "task.partition: missing a required argument: 'alpha'"),
        ({"partition": {"name": "dirichlet", "alpha": 0}}, "alpha must be from 1e-6"),
        ({"partition": {"name": "dirichlet", "alfa": 1}}, "unknown key 'task.partition.alfa'; did you mean"),
        ({"partition": {"name": "pathological", "classes": 0}}, "classes must be 1 or more"),
        ({"partition": {"name": "writer"}}, 'needs a data set that names its writers, such as "qmnist"'),
        ({"partition": {}}, "task.partition must be a table with a name"),
        ({"shift": {"name": "domain"}}, "needs several data sets"),
        ({"data": ["digits", "digits"]}, 'several data sets need shift = { name = "domain" }'),
        ({"data": ["digits", "digits"], "shift": {"name": "domain"}}, "needs different data sets"),
        ({"data": []}, "task.data must name a data set"),
        ({"shift": {"name": "rotation", "angles": []}}, "a list of groups is empty"),
        ({"shift": {"name": "rotation", "angles": [0, 90], "sizes": [1]}}, "`sizes` must be 2 numbers above 0"),
        ({"shift": {"name": "rotation", "angles": [0, 90], "sizes": [1e308, 1e308]}}, "`sizes` must be 2 numbers above 0"),
        ({"shift": {"name": "rotation", "angles": [0, float("nan")]}}, "angles must be finite"),
        ({"shift": {"name": "concept", "groups": -1}}, "task.shift.groups must be 0 or more, got -1"),
        ({"shift": {"name": "label-groups", "groups": [[0], [10]]}}, "a group's classes must be among"),
        ({"shift": {"name": "label-permutation"}}, "needs either `share` or `nodes`"),
        ({"shift": {"name": "label-permutation", "nodes": 5}}, "5 of 4 nodes cannot have permuted labels"),
        ({"model": {"name": "cnn", "kernel": 5}}, "images of 8 x 8 pixels are too small for 2 blocks with kernel 5"),
        ({"model": {"name": "mlp", "hidden": [0]}}, "task.model.hidden must be 1 or more"),
        ({"optimizer": {"name": "adam", "lr": -1}}, "task.optimizer: lr must be 0 or more"),
        ({"optimizer": {"name": "rmsprop"}}, "unknown task.optimizer 'rmsprop'"),
        ({"validation": 1.5}, "task.validation must be a whole number, or a share of at most 0.5"),
        ({"validation": 0.9}, "task.validation must be a whole number, or a share of at most 0.5"),
        ({"samples": -1}, "task.samples and task.test must be 0 or more"),
        ({"augment": {"noise": -1}}, "task.augment: shift, rotation and noise must be 0 or more"),
        ({"augment": {"blur": 1}}, "unknown key 'task.augment.blur'"),
    ],
)
def test_image_task_refuses_invalid_options(options, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        make(**options)
    assert "\n" not in str(caught.value)


# Real files


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="P2PFL_DATA does not name a folder with data sets")
@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("fashion-mnist", {"model": {"name": "cnn"}}),
        ("cifar10", {"partition": {"name": "dirichlet", "alpha": 0.1}, "model": {"name": "cnn", "dense": [120, 84]}}),
        ("qmnist_writers", {"data": "qmnist", "partition": {"name": "writer"}, "samples": 100}),
    ],
)
def test_real_images_can_be_learned(folder, options):
    if not Path(REAL, folder).is_dir():
        pytest.skip(f"P2PFL_DATA has no folder {folder}")
    task = make(3, 100, test=50, **{"data": folder} | options, optimizer={"name": "adam", "lr": 0.001})
    learner = task.learner(RandomStreams(0, "a"))
    before = task.initial(0)
    after = learner.train(before, round=1, epochs=3)
    losses = learner.loss([before, after], split="train")
    assert losses[1] < losses[0]


def test_node_with_part_gets_its_share_of_images(tmp_path):
    config.create(tmp_path / "a", "a", part="1/3", task="images")
    changes = ["task.data=digits", 'task.shift={ name = "rotation", angles = [0, 90, 180] }', "task.samples=50"]
    task = loading.task_of(loading.load(tmp_path / "a", changes))
    assert task.public_info == {"group": 1}
    expected = make(1, 3, samples=50, shift={"name": "rotation", "angles": [0, 90, 180]})
    assert torch.equal(task.data["train"].x, expected.data["train"].x)


def test_images_take_further_metrics_and_a_schedule():
    optimizer = {"name": "adamw", "lr": 0.01, "schedule": {"name": "step", "every": 1, "factor": 0.0}}
    task = make(metrics=["f1", "balanced_accuracy"], optimizer=optimizer)
    learner, first = task.learner(RandomStreams(0, "a"), "cpu"), task.initial(0)
    assert {*learner.evaluate([first], ["test"])[0]} == {
        "test_loss",
        "test_accuracy",
        "test_f1",
        "test_balanced_accuracy",
    }
    assert (learner.train(first, round=1) != first).any()
    assert (learner.train(first, round=2) == first).all()
