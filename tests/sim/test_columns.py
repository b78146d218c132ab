"""Tables whose rows lie on disk (p2pfl.sim.columns)."""

import gc
import tempfile

import numpy as np
import pytest

from p2pfl.errors import RunError
from p2pfl.sim import columns
from p2pfl.sim.columns import Columns


@pytest.fixture(params=[1, 2**25], ids=["mapped", "read"])
def parts(request, monkeypatch):
    monkeypatch.setattr(columns, "PART", 4)
    monkeypatch.setattr(columns, "MAPPED", request.param)


def filled(rows):
    table = Columns(number=np.int64, half=np.float32)
    for k in range(rows):
        table.append((k, k / 2))
    return table


@pytest.mark.parametrize("rows", [0, 3, 4, 5, 21])
@pytest.mark.parametrize("first", [0, 2, 4, 20, 30])
def test_table_has_all_rows_from_first_one(parts, rows, first):
    found = filled(rows).table(first)
    assert {name: column.dtype for name, column in found.items()} == {"number": np.int64, "half": np.float32}
    assert found["number"].tolist() == list(range(rows))[first:]
    assert found["half"].tolist() == [k / 2 for k in range(rows)][first:]


def test_rows_can_be_added_after_table_was_read(parts):
    table = filled(9)
    before = table.table()
    for k in range(9, 14):
        table.append((k, k / 2))
    assert before["number"].tolist() == list(range(9))
    assert table.table()["number"].tolist() == list(range(14))
    assert len(table) == 14


def test_columns_outlive_table_and_do_not_change_it(parts):
    table = filled(9)
    one, other = table.table(), table.table()
    one["number"][0] = 100
    assert other["number"][0] == table.table()["number"][0] == 0
    del table
    gc.collect()
    assert one["half"].sum() == sum(range(9)) / 2


def test_full_disk_is_explained(parts, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(RunError, match=r"cannot write the rows of the run to .*absent: .*TMPDIR"):
        filled(4)
