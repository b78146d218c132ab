"""LEAF's FEMNIST: small files in its form, damaged ones, and nodes that are writers."""

import json

import numpy as np
import pytest

from p2pfl._util import machine
from p2pfl.data import image_sets as sets
from p2pfl.data import leaf
from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.main import main
from p2pfl.task import Part, make_task

SIDE = 28


def drawn(seed, count, side=SIDE):
    """Return images as bytes, [count, side * side], and labels."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, side * side)).astype(np.uint8), rng.integers(0, 62, count)


def content(writers):
    """Return a file in LEAF's form: the byte of each pixel divided by 255, and written as JSON."""
    data = {name: {"x": (x / 255).tolist(), "y": y.tolist()} for name, (x, y) in writers.items()}
    return {"users": [*data], "num_samples": [len(each["y"]) for each in data.values()], "user_data": data}


def write(folder, part, number, about):
    path = folder / part / f"all_data_{number}_niid_0_keep_0_{part}_9.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(about if isinstance(about, str) else json.dumps(about))
    return path


def make(root, name="femnist", sizes=(6, 4, 5, 7), tested=2):
    """Write a set of some writers in two files for each part; return their images."""
    writers = {f"f{k:04d}_{k}": drawn(k, size) for k, size in enumerate(sizes)}
    for part, pick in (("train", slice(tested, None)), ("test", slice(tested))):
        chosen = {writer: (x[pick], y[pick]) for writer, (x, y) in writers.items()}
        items = [*chosen.items()]
        write(root / name, part, 0, content(dict(items[:2])))
        write(root / name, part, 1, content(dict(items[2:])))
    return writers


def task(root, part=0, count=1, **options):
    return make_task("images", {"data": "femnist", "root": str(root), **options}, Part(part, count), 0)


def test_load_gives_back_every_byte_and_its_writer(tmp_path):
    writers = make(tmp_path)
    data = sets.load("femnist", str(tmp_path))
    assert (data.classes, data.top, data.train.x.shape[1:]) == (62, 255, (1, SIDE, SIDE))
    for number, (x, y) in enumerate(writers.values()):
        for part, pick in ((data.train, slice(2, None)), (data.test, slice(2))):
            own = part.writers == number
            assert np.array_equal(part.x[own].reshape(-1, SIDE * SIDE), x[pick])
            assert np.array_equal(part.y[own], y[pick])
    assert "4 writers" in data.facts.details


def test_node_of_writers_is_tested_on_its_own_writers(tmp_path):
    writers = make(tmp_path)
    found = [task(tmp_path, k, 4, partition={"name": "writer"}, test_classes="writers", validation=0) for k in range(4)]
    sizes = sorted((len(one.data["train"].y), len(one.data["test"].y)) for one in found)
    assert sizes == sorted((len(y) - 2, 2) for _, y in writers.values())
    for one in found:
        (match,) = [y for _, y in writers.values() if np.array_equal(y[2:], one.data["train"].y.numpy())]
        assert sorted(one.data["test"].y.tolist()) == sorted(match[:2].tolist())


def test_node_with_fewer_test_images_than_asked_says_so(tmp_path):
    make(tmp_path)
    one = task(tmp_path, 0, 2, partition={"name": "writer"}, test_classes="writers", test=10, validation=0)
    assert one.data_notes == ("tested on 4 of 10 test images: its writers have no more",)
    fewer = task(tmp_path, 0, 2, partition={"name": "writer"}, test_classes="writers", test=3, validation=0)
    assert (len(fewer.data["test"].y), fewer.data_notes) == (3, ())


def test_writers_that_are_only_in_the_training_part_are_refused(tmp_path):
    write(tmp_path / "femnist", "train", 0, content({"a": drawn(0, 3), "b": drawn(1, 3)}))
    write(tmp_path / "femnist", "test", 0, content({"c": drawn(2, 3)}))
    with pytest.raises(ConfigurationError, match=r'no writer of node 0 has test images in \'femnist\'; make .* "-t sample"'):
        task(tmp_path, 0, 2, partition={"name": "writer"}, test_classes="writers")


def test_set_without_writers_is_refused():
    with pytest.raises(ConfigurationError, match="the data set 'digits' does not name its writers"):
        make_task("images", {"test_classes": "writers"}, Part(0, 1), 0)


def spoil(**changes):
    return content({"a": drawn(0, 3)}) | changes


def samples(**changes):
    about = content({"a": drawn(0, 3)})
    about["user_data"]["a"] |= changes
    return about


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ('{"users": ["a"], ', "is not a file of LEAF"),
        ("[]", "is not a file of LEAF"),
        (spoil(users=["b"]), "users, num_samples and user_data do not list the same writers"),
        (spoil(num_samples=[3, 4]), "users, num_samples and user_data do not list the same writers"),
        (spoil(users=["a", "a"], num_samples=[3, 3]), "users lists 'a' twice"),
        (spoil(num_samples=[4]), "has 3 images and 3 labels, but num_samples is 4"),
        (samples(y=[1, 2]), "has 3 images and 2 labels, but num_samples is 3"),
        (samples(y=[1, 2, 62]), "has the label 62, but FEMNIST has 62 classes"),
        (samples(y=[1, 2, -1]), "has the label -1"),
        (samples(x=["a.jpg", "b.jpg", "c.jpg"]), "of LEAF's data sets, FEMNIST is read"),
        (samples(x=[[0.0] * 60] * 3), "has images that are not square: 60 numbers"),
        (samples(x=[[0.0] * 784, [0.0] * 784, [0.0] * 783]), "has images that are not square: 783, 784 numbers"),
        (samples(x=[[0.0] * 25] * 3), "training and test images have different shapes"),
        (samples(x=[[0.5] * 784] * 3), "pixels that are not multiples of 1/255 from 0 to 1"),
        (samples(x=[[2.0] * 784] * 3), "pixels that are not multiples of 1/255 from 0 to 1"),
        (samples(x=[[-1 / 255] * 784] * 3), "pixels that are not multiples of 1/255 from 0 to 1"),
        (samples(x=[], y=[]) | {"num_samples": [0]}, "no writer of its files has an image"),
    ],
)
def test_wrong_file_is_refused_in_one_line(tmp_path, about, message):
    write(tmp_path / "femnist", "train", 0, about)
    write(tmp_path / "femnist", "test", 0, content({"a": drawn(1, 3)}))
    with pytest.raises(ConfigurationError, match=message) as caught:
        sets.load("femnist", str(tmp_path))
    assert "\n" not in str(caught.value)
    assert "github.com/TalwalkarLab/leaf" in str(caught.value)


def test_writer_in_two_files_of_a_part_is_refused(tmp_path):
    for number in (0, 1):
        write(tmp_path / "femnist", "train", number, content({"a": drawn(0, 3)}))
    write(tmp_path / "femnist", "test", 0, content({"a": drawn(1, 3)}))
    with pytest.raises(ConfigurationError, match="the writer 'a' is also in all_data_0_niid"):
        sets.load("femnist", str(tmp_path))


def test_missing_part_is_refused(tmp_path):
    write(tmp_path / "femnist", "train", 0, content({"a": drawn(0, 3)}))
    with pytest.raises(ConfigurationError, match=r"test has no JSON files; LEAF makes both parts with ./preprocess.sh"):
        sets.load("femnist", str(tmp_path))


def test_file_that_does_not_fit_into_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    make(tmp_path)
    monkeypatch.setattr(machine, "free_memory", lambda: 1000)
    with pytest.raises(ConfigurationError, match="of memory, but only"):
        leaf.read(tmp_path / "femnist")


def test_other_sets_of_this_form_have_their_own_classes(tmp_path):
    make(tmp_path, "letters")
    assert sets.load("letters", str(tmp_path)).classes <= 62


def test_simulation_runs_writers_as_nodes(tmp_path, monkeypatch, capsys):
    make(tmp_path, sizes=(12, 9, 10, 11))
    monkeypatch.setenv("P2PFL_DATA", str(tmp_path))
    (tmp_path / "study.toml").write_text("""
nodes = 4
rounds = 1
policy = "fedavg"
[task]
name = "images"
data = "femnist"
partition = { name = "writer" }
test_classes = "writers"
model = { name = "linear" }
""")
    assert main(["run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")]) == 0
    assert "4 writers" in capsys.readouterr().out
