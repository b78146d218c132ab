"""Splits of single nodes that are smaller than requested are said, with both numbers, for every task that reads data."""

import numpy as np
import pytest
from torch import nn

import p2pfl
from p2pfl.data import binary_files
from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.main import main
from p2pfl.task import Part, make_task
from tests.p2pfl.data.test_formats import idx_bytes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = np.arange(60) % 3


def own(n=60, **options):
    return p2pfl.classification(lambda: nn.Linear(3, 3), (X[:n], Y[:n]), **options)


def table(folder, part=0, count=1, **options):
    return make_task("classification", {"data": str(folder / "rows.npz"), **options}, Part(part, count), 0)


def write_rows(folder, test_labels):
    np.savez(folder / "rows.npz", x=X, y=Y, x_test=RNG.normal(size=(len(test_labels), 3)), y_test=test_labels)


def write_images(folder, train, test):
    for part, labels in (("train", np.array(train, np.uint8)), ("t10k", np.array(test, np.uint8))):
        pixels = RNG.integers(0, 256, (len(labels), 8, 8)).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(pixels))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))


def images(root, part=0, count=1, **options):
    return make_task("images", {"data": "own", "root": str(root), **options}, Part(part, count), 0)


@pytest.fixture
def own_images(tmp_path):
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def test_number_that_is_not_held_out_is_noted():
    assert own(test=40).data_notes == (
        "test: 30 samples are held out, not 40; at least half of 60 must remain for training",
    )
    assert own(2, validation=0.1, test=0.1).data_notes == (
        "test: 0 samples are held out, not a fraction of 0.1; at least half of 1 must remain for training",
    )
    assert own(test=20, validation=0.1).data_notes == ()


@pytest.mark.slow
def test_run_counts_nodes_with_smaller_splits():
    def task(part, seed):
        rule = p2pfl.partition("iid")
        return p2pfl.classification(
            lambda: nn.Linear(3, 3), (X, Y), test=10 + part.index // 3, partition=rule, part=part, seed=seed
        )

    (run,) = p2pfl.simulate({"nodes": 4, "rounds": 1, "task": task, "policy": "local"}, progress=False)
    assert run.notes[:2] == [
        "node-0, node-1 and 1 more: test: 7 samples are held out, not 10; at least half of 15 must remain for training",
        "node-3: test: 7 samples are held out, not 11; at least half of 15 must remain for training",
    ]


def test_rows_of_a_file_that_are_too_few_for_a_split_are_noted(tmp_path):
    np.savez(tmp_path / "rows.npz", x=X[:4], y=Y[:4] % 2)
    assert table(tmp_path).data_notes == (
        "no row is held out for validation: a fraction of 0.1 of 4 rows is less than half a row",
        "no row is held out for test: a fraction of 0.1 of 4 rows is less than half a row",
    )
    write_rows(tmp_path, Y[:30])
    assert table(tmp_path).data_notes == ()


RULE = {"partition": {"name": "iid"}}


def test_rows_with_a_rare_class_in_the_test_are_noted(tmp_path):
    write_rows(tmp_path, [0, 1] * 100 + [2])
    note = table(tmp_path, count=2, **RULE).data_notes[0]
    assert note.startswith("a node is tested on ")
    assert note.endswith('only 1 of class 2; for all test samples set task.judged_on = "all"')
    everything = table(tmp_path, count=2, **RULE, judged_on="all")
    assert (len(everything.data["test"].y), everything.data_notes) == (201, ())


def test_few_test_rows_with_a_rare_class_are_noted(tmp_path):
    np.savez(tmp_path / "rows.npz", x=X, y=Y % 2, x_test=X[:20], y_test=[0] * 19 + [1])
    note = table(tmp_path, count=2, **RULE).data_notes[0]
    assert note.startswith("a node is tested on 2 of 20 test samples")


def test_class_without_test_rows_is_noted(tmp_path):
    np.savez(tmp_path / "rows.npz", x=X, y=Y, x_test=X[:40], y_test=Y[:40] % 2)
    assert table(tmp_path, count=2, **RULE).data_notes == ("no test sample is of class 2, on which a node trains",)


def test_rows_with_a_test_label_that_is_not_trained_are_refused(tmp_path):
    np.savez(tmp_path / "rows.npz", x=X, y=Y % 2, x_test=X[:30], y_test=Y[:30])
    with pytest.raises(ConfigurationError, match=r"target 2 is 2, which no training sample has; .* set task.judged_on"):
        table(tmp_path, count=2, classes=3, **RULE)


def test_images_that_are_too_few_for_a_split_are_noted(own_images, tmp_path):
    write_images(own_images, [0, 1] * 40, [0] * 30 + [1] * 2)
    task = images(tmp_path, count=2, test=20, validation=30)
    size = len(task.data["test"].y)
    assert size < 20
    assert task.data_notes == (
        "validated on 20 images, not 30, because half of its share is for training",
        f"tested on {size} of 20 test images, which have the proportions of its training labels, and only 2 have the label"
        " 1",
    )
    assert images(tmp_path, count=2, test=20, test_classes="all").data_notes == ()
    assert images(tmp_path, count=2, test=size).data_notes == ()


def test_images_with_an_untrained_test_label_are_refused(own_images, tmp_path):
    write_images(own_images, [0, 1] * 40, [0, 1, 2] * 10)
    with pytest.raises(ConfigurationError, match="has test images of the label 2, but no training image of it; leave these"):
        images(tmp_path)
    assert len(images(tmp_path, test_classes="all").data["test"].y) == 30


def test_image_set_says_what_was_understood(own_images, tmp_path):
    write_images(own_images, [1, 2] * 40, [1, 2] * 10)
    (facts,) = images(tmp_path).data_facts
    assert facts.line == "own: images, 80 samples; 20 test images; 1 x 8 x 8 pixels from 0 to 255; 3 classes"
    assert facts.notes == ("own: no training image has the label 0; the model has 3 classes, 0 to 2",)


def test_folder_of_several_sets_or_of_pictures_is_refused(own_images, tmp_path):
    (own_images / "cats").mkdir()
    (own_images / "cats" / "1.PNG").touch()
    with pytest.raises(
        ConfigurationError, match=r"neither IDX .* for a folder of pictures, write a task with p2pfl.classif"
    ):
        images(tmp_path)
    write_images(own_images, [0, 1], [0, 1])
    for name in ("train.bin", "test.bin"):
        (own_images / name).write_bytes(bytes(2 + binary_files.PIXELS))
    with pytest.raises(ConfigurationError, match=r"several data sets \(IDX files and binary files of CIFAR\); move each"):
        images(tmp_path)


def test_packed_copy_of_a_batch_is_read_once(own_images, tmp_path):
    for name in ("data_batch_1.bin", "data_batch_1.bin.gz", "test_batch.bin"):
        (own_images / name).write_bytes(bytes(1 + binary_files.PIXELS) + b"\1" + bytes(binary_files.PIXELS))
    assert images(tmp_path).n_samples + len(images(tmp_path).data["validation"].y) == 2


def test_data_check_shows_notes_of_the_division(tmp_path, capsys):
    np.savez(tmp_path / "rows.npz", x=X[:8], y=Y[:8] % 2)
    path = tmp_path / "small.toml"
    task = f'{{ name = "classification", data = "{tmp_path}/rows.npz", partition = {{ name = "iid" }} }}'
    path.write_text(f'nodes = 2\ntask = {task}\npolicy = {{ name = "local" }}\n[[run]]\nname = "x"\n')
    assert main(["data", "check", str(path)]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes[-1] == ("note: all nodes: no row is held out for test: a fraction of 0.1 of 4 rows is less than half a row")


def test_own_images_that_are_tested_and_trained_are_noted(own_images, tmp_path):
    write_images(own_images, [0, 1] * 10, [0] * 6)
    for kind in ("images-idx3", "labels-idx1"):
        (own_images / f"t10k-{kind}-ubyte").write_bytes((own_images / f"train-{kind}-ubyte").read_bytes())
    assert images(tmp_path).data_facts[0].notes == (
        "own: 20 of 20 test images are also training images with the same label",
    )


def test_own_images_of_one_class_or_with_untested_ones_are_noted(own_images, tmp_path):
    write_images(own_images, [0] * 20, [0] * 6)
    assert images(tmp_path).data_facts[0].notes == ("own: all training images have the label 0",)
    write_images(own_images, [0, 1] * 10, [0] * 6)
    assert images(tmp_path).data_facts[0].notes == ("own: no test image has the label 1, which training images have",)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("train/cat/1.png", "; for a folder of pictures, write a task"),
        ("MNIST/raw/train-images-idx3-ubyte", ", but MNIST/raw does; move its files to own"),
        ("data.npz", "; for arrays and tables, use the task classification"),
    ],
)
def test_folder_of_other_files_is_refused_with_the_remedy(own_images, tmp_path, name, remedy):
    (own_images / name).parent.mkdir(parents=True, exist_ok=True)
    (own_images / name).touch()
    with pytest.raises(
        ConfigurationError, match=f"neither IDX files nor binary files of CIFAR nor JSON files of LEAF{remedy}"
    ):
        images(tmp_path)
