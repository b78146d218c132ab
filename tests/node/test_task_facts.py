"""Facts of a task in a checkpoint: they name what has changed, and features of another meaning are refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from p2pfl.data_facts import ColumnFacts, DataFacts
from p2pfl.node.checkpoint import TaskFacts, describe_change, facts_of
from p2pfl.parameters import Layout
from p2pfl.task import Part, make_task


def columns(*names):
    return TaskFacts(features=list(names))


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (TaskFacts(), TaskFacts(["a"], {"features": 1}, [("w", [1])]), ""),
        (columns("a", "b"), columns("a", "b"), ""),
        (columns("a", "b"), columns("a", "b", "c"), "the data now have 3 features instead of 2 (new: c)"),
        (columns("a", "b", "c"), columns("c", "d"), "the data now have 2 features instead of 3 (new: d, missing: a, b)"),
        (columns("a", "b"), columns("a", "c"), "the data now have other features (new: c, missing: b)"),
        (columns("a", "b"), columns("b", "a"), "the features of the data are in another order: b, a instead of a, b"),
        (
            TaskFacts(options={"features": 4, "classes": 2}),
            TaskFacts(options={"features": 5, "classes": 3}),
            "the data now have 5 features instead of 4 and 3 classes instead of 2",
        ),
        (
            TaskFacts(options={"features": 4, "columns": "ab"}),
            TaskFacts(options={"features": 4, "columns": "cd"}),
            "the data now have other columns, or the same ones in another order",
        ),
        (
            TaskFacts(shapes=[("w", [2, 4])]),
            TaskFacts(shapes=[("w", [2, 5])]),
            "the model is another one now: its tensor w has the shape 2 x 5 instead of 2 x 4; the data may have other"
            " columns, or the task other options",
        ),
        (
            TaskFacts(shapes=[("w", [2]), ("v", [])]),
            TaskFacts(shapes=[("u", [2])]),
            "the model has other tensors now (new: u, missing: w, v)",
        ),
    ],
)
def test_change_is_named(before, now, change):
    assert describe_change(before, now) == change


def test_many_columns_are_counted():
    text = describe_change(columns("a"), columns("a", *(f"x{k}" for k in range(10))))
    assert text == "the data now have 11 features instead of 1 (new: x0, x1, x2, x3, x4, x5 and 4 more)"


def test_features_are_the_columns_that_the_model_sees():
    found = (ColumnFacts("age", "number"), ColumnFacts("sex", "category", "sensitive"), ColumnFacts("y", "number", "label"))
    facts = [DataFacts("d.csv", "CSV", 3, found)]
    task = SimpleNamespace(layout=Layout((("w", (2, 1)),), 2), data_facts=facts, derived_options={}, row_encoding={})
    assert facts_of(task) == TaskFacts(["age", "sex"], {}, [("w", [2, 1])])


def test_table_with_more_features_is_named(tmp_path):
    def facts(width):
        path = tmp_path / f"{width}.npz"
        np.savez(path, x=np.zeros((20, width), np.float32), y=np.arange(20) % 2)
        return facts_of(make_task("classification", {"data": str(path)}, Part(0, 1), 0))

    assert describe_change(facts(4), facts(5)) == "the data now have 5 features instead of 4"
