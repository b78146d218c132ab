"""Digests of files, folders and objects: what changes them, what does not, and what has none."""

import copy
import functools
import io
import os
import sys
import threading
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from p2pfl import content
from p2pfl.content import UnknownContentError, digest_file, digest_folder, digest_of, digest_path


def run(text, **names):
    """Return the names that a cell of a notebook defines."""
    space = {"__name__": "__main__", **names}
    exec(compile(text, "<cell>", "exec"), space)
    return space


def test_file_has_the_digest_of_its_content(tmp_path):
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_bytes(b"1,2")
    other.write_bytes(b"1,2")
    assert digest_file(path) == digest_file(other) == digest_path(path)
    before = digest_file(path)
    os.utime(path, (1, 1))
    assert digest_file(path) == before
    path.write_bytes(b"1,3")  # at once, and of the same size
    assert digest_file(path) != before


def test_change_that_keeps_size_and_modification_time_is_seen(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,2")
    os.utime(path, (1, 1))
    before = digest_file(path)
    path.write_bytes(b"1,3")
    os.utime(path, (1, 1))
    assert digest_file(path) != before


def test_settled_file_is_read_once(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,2")
    later = content.time.time_ns() + 60 * 10**9
    monkeypatch.setattr(content.time, "time_ns", lambda: later)
    digest = digest_file(path)
    monkeypatch.setattr(content, "blake3", None)  # any further hash would fail
    assert digest_file(path) == digest


@pytest.mark.parametrize("change", ["content", "name", "added", "removed", "folder"])
def test_folder_has_the_digest_of_names_and_contents(tmp_path, change):
    folder = tmp_path / "images"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "1.png").write_bytes(b"a")
    (folder / "cat" / "2.png").write_bytes(b"b")
    before = digest_folder(folder)
    match change:
        case "content":
            (folder / "cat" / "1.png").write_bytes(b"c")
        case "name":
            (folder / "cat" / "1.png").rename(folder / "cat" / "3.png")
        case "added":
            (folder / "cat" / "3.png").write_bytes(b"a")
        case "removed":
            (folder / "cat" / "2.png").unlink()
        case "folder":
            (folder / "dog").mkdir()
    assert digest_folder(folder) != before


def test_folder_keeps_its_digest_when_it_is_moved_or_touched(tmp_path):
    folder = tmp_path / "images"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "1.png").write_bytes(b"a")
    (folder / "round").symlink_to(folder)
    before = digest_folder(folder)
    os.utime(folder / "cat" / "1.png", (1, 1))
    (folder / ".DS_Store").write_bytes(b"of a system")
    (folder / "round").unlink()
    moved = folder.rename(tmp_path / "moved")
    (moved / "round").symlink_to(moved)
    assert digest_folder(moved) == before


FUNCTION = "def f(x, k={default}, *, m={keyword}):\n    return helper(x) + {constant}\ndef helper(x):\n    return {inner}"
PLAIN = {"default": 1, "keyword": 2, "constant": 3, "inner": "x"}


@pytest.mark.parametrize("change", [{"default": 5}, {"keyword": 5}, {"constant": 5}, {"inner": "x * 2"}])
def test_function_has_the_digest_of_what_it_does(change):
    function = run(FUNCTION.format(**PLAIN))["f"]
    assert digest_of(function) == digest_of(run("# a comment\n" + FUNCTION.format(**PLAIN))["f"])
    assert digest_of(function) != digest_of(run(FUNCTION.format(**PLAIN | change))["f"])


def test_function_depends_on_closure_globals_and_inner_code():
    def outer(value):
        return lambda x: [x + value for _ in range(2)]

    assert digest_of(outer(1)) == digest_of(outer(1)) != digest_of(outer(2))
    text = "def f(x):\n    def g():\n        return x * SCALE\n    return g()"
    assert digest_of(run(text, SCALE=1)["f"]) == digest_of(run(text, SCALE=1)["f"]) != digest_of(run(text, SCALE=2)["f"])
    assert digest_of(run(text)["f"]) != digest_of(run(text, SCALE=None)["f"])
    unused = run("def f(x):\n    return x.SCALE", SCALE=1)["f"]
    assert digest_of(unused) == digest_of(run("def f(x):\n    return x.SCALE", SCALE=2)["f"])


def test_functions_that_call_each_other_have_a_digest():
    text = "def f(x):\n    return g(x - 1)\ndef g(x):\n    return f(x) if x else {}"
    assert digest_of(run(text.format(1))["f"]) == digest_of(run(text.format(1))["f"])
    assert digest_of(run(text.format(1))["f"]) != digest_of(run(text.format(2))["f"])


def test_function_with_the_name_of_another_counts_by_its_code():
    def one(x):
        return x + 1

    def two(x):
        return x + 2

    assert digest_of(functools.wraps(torch.nn.functional.gelu)(one)) != digest_of(
        functools.wraps(torch.nn.functional.gelu)(two)
    )


CLASS = "class T{bases}:\n    scale = {scale}\n    def __call__(self, x):\n        return x * self.scale{more}"
ONE = {"bases": "", "scale": 1, "more": ""}


@pytest.mark.parametrize("change", [{"scale": 2}, {"more": " + 1"}, {"bases": "(dict)"}])
def test_object_depends_on_its_class(change):
    value = run(CLASS.format(**ONE))["T"]()
    assert digest_of(value) == digest_of(run(CLASS.format(**ONE))["T"]())
    assert digest_of(value) != digest_of(run(CLASS.format(**ONE | change))["T"]())


def test_module_of_ones_own_counts_with_its_content(monkeypatch):
    def module(scale):
        made = ModuleType("mine")
        exec(f"SCALE = {scale}\ndef f(x):\n    return x * SCALE", vars(made))
        return made

    used = "def g(x):\n    return mine.f(x)"
    assert digest_of(run(used, mine=module(1))["g"]) == digest_of(run(used, mine=module(1))["g"])
    assert digest_of(run(used, mine=module(1))["g"]) != digest_of(run(used, mine=module(2))["g"])
    assert digest_of(np) == digest_of(np)  # an installed one counts by its name


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


VALUES = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ("1", 1),
    ("a", b"a"),
    ([1, 2], (1, 2)),
    ([1, [2]], [1, 2]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1, 2}, {1, 3}),
    (np.zeros(3), np.zeros((3, 1))),
    (np.zeros(2, "f4"), np.zeros(2, "i4")),
    (np.array(["a"]), np.array(["b"])),
    (np.array([1, "a"], object), np.array([1, "b"], object)),
    (np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-02"], "M8[D]")),
    (torch.zeros(2), torch.ones(2)),
    (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
    (Slots(1), Slots(2)),
    (np.random.default_rng(0), np.random.default_rng(1)),
    (functools.partial(max, 1), functools.partial(max, 2)),
    ([].append, [1].append),
    (nn.Linear(2, 2, bias=False).requires_grad_(False), nn.Linear(2, 2, bias=False)),
    (nn.Dropout(0.1), nn.Dropout(0.2)),
    (len, max),
    (np.float32(1), np.float64(1)),
]


@pytest.mark.parametrize(("one", "other"), VALUES, ids=range(len(VALUES)))
def test_objects_with_other_content_have_other_digests(one, other):
    assert digest_of(one) == digest_of(copy.deepcopy(one))
    assert digest_of(one) != digest_of(other)


def test_object_that_contains_itself_has_a_digest():
    value = []
    value.append(value)
    other = [1]
    other.append(other)
    assert digest_of(value) == digest_of(copy.deepcopy(value)) != digest_of(other)


def test_set_has_one_digest_whatever_its_order():
    assert digest_of({"a", "b", "c"}) == digest_of(set("cba"))


def test_object_that_names_files_counts_with_their_content(tmp_path):
    path, folder = tmp_path / "a.csv", tmp_path / "images"
    path.write_bytes(b"1")
    folder.mkdir()
    value = [str(path), folder]
    before = digest_of(value)
    assert digest_of(value) == before
    path.write_bytes(b"2")
    changed = digest_of(value)
    (folder / "1.png").write_bytes(b"")
    assert len({before, changed, digest_of(value)}) == 3


@pytest.mark.parametrize(
    "value",
    [
        (each for each in [1]),
        threading.Lock(),
        io.TextIOWrapper(io.BytesIO()),
        [{"inside": threading.Lock()}],
        torch.zeros(2, device="meta"),
        torch.zeros(2, 2).to_sparse(),
        run("import sys\nframe = sys._getframe()")["frame"],
    ],
    ids=["generator", "lock", "file", "inside", "meta", "sparse", "frame"],
)
def test_object_whose_content_cannot_be_seen_has_no_digest(value):
    with pytest.raises(UnknownContentError):
        digest_of(value)


def test_deep_nesting_has_no_digest():
    value = []
    for _ in range(sys.getrecursionlimit()):
        value = [value]
    with pytest.raises(UnknownContentError, match="too deeply"):
        digest_of(value)


def test_known_objects_count_by_their_names():
    one, other = threading.Lock(), threading.Lock()
    assert digest_of([one], {id(one): "lock"}) == digest_of([other], {id(other): "lock"})


def test_unset_closure_differs_from_none():
    def make(given):
        if given:
            value = None
        return lambda: value

    assert isinstance(make(True), FunctionType)
    assert digest_of(make(True)) != digest_of(make(False))
