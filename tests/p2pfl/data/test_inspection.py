"""First look at a user's data: the proposal, its reasons, and what is refused."""

import random

import numpy as np
import pytest

from p2pfl.data.inspection import find_data, inspect
from p2pfl.errors import ConfigurationError

HEADER = "patient_id,hospital,age,sex,bmi,diagnosis\n"


def patients(rows=120, hospitals=("north", "south"), **cells):
    """Return a table; `cells` replaces the cells of a column by line, such as diagnosis={3: ""}."""
    draw = random.Random(0)
    lines = []
    for k in range(rows):
        row = {
            "patient_id": str(k),
            "hospital": hospitals[k % len(hospitals)],
            "age": str(draw.randint(20, 90)),
            "sex": draw.choice("fm"),
            "bmi": f"{draw.gauss(26, 4):.1f}",
            "diagnosis": draw.choice(["ill", "healthy"]),
        }
        row |= {name: by_line[k + 2] for name, by_line in cells.items() if k + 2 in by_line}
        lines.append(",".join(row.values()))
    return HEADER + "\n".join(lines) + "\n"


@pytest.fixture
def table(tmp_path):
    def write(text, name="own.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def choices(proposal):
    return {each.subject: each.choice for each in proposal.reasons}


def test_proposal_of_table_with_sites(table):
    found = inspect(table(patients(bmi={5: "NA"})))
    assert found.task == {
        "name": "classification",
        "target": "diagnosis",
        "labels": ["healthy", "ill"],
        "ignore": ["patient_id", "hospital"],
        "categories": {"sex": ["f", "m"]},
        "missing": "mean",
        "standardize": "local",
    }
    assert (found.nodes, found.partition, found.policy) == (2, {"name": "column", "column": "hospital"}, "dac")
    assert all(each.why for each in found.reasons)


def test_column_without_usual_name_is_guessed_and_said(table):
    found = inspect(table("a,b,outlook\n" + "".join(f"{k * 7 % 50},{k * 3 % 40},{'xy'[k % 2]}\n" for k in range(60))))
    (label,) = [each for each in found.reasons if each.subject == "label"]
    assert label.guess
    assert "it is the last column" in label.why
    assert "--label" in label.why


def test_label_numbers_many_and_few(table):
    many = inspect(table("a,price\n" + "".join(f"{k * 7 % 50},{k * 7.5 + 0.25}\n" for k in range(60))))
    assert (many.task["name"], many.task["metrics"], many.partition) == ("regression", ["mae", "r2"], {"name": "iid"})
    few = inspect(table("a,label\n" + "".join(f"{k * 7 % 50},{1 + k % 3}\n" for k in range(60))))
    assert (few.task["name"], few.task["labels"], few.partition["name"]) == ("classification", [1, 2, 3], "dirichlet")


def test_rare_label_adds_balanced_accuracy(table):
    text = "a,label\n" + "".join(f"{k * 7 % 50},{int(k % 10 == 0)}\n" for k in range(100))
    assert inspect(table(text)).task["metrics"] == ["balanced_accuracy"]


def test_labels_that_cannot_be_read_are_named_together_with_lines(table):
    with pytest.raises(ConfigurationError, match=r"no label in lines 4, 9; correct"):
        inspect(table(patients(diagnosis={4: "", 9: "NA"})))
    wrong = dict.fromkeys(range(2, 122), "1") | {7: "0", 20: "x", 31: "y", 32: "x"}
    with pytest.raises(ConfigurationError, match=r"'x' in lines 20, 32, 'y' in line 31 among numbers"):
        inspect(table(patients(diagnosis=wrong)))


def test_label_beyond_the_first_rows_is_found(table):
    rows = "".join(f"{k},{'b' if k == 2500 else 'a'},{k * 7 % 13}\n" for k in range(3000))
    found = inspect(table(f"id,kind,x\n{rows}"), label="kind")
    assert found.task["labels"] == ["a", "b"]
    late = inspect(
        table("x,kind,y\n" + "".join(f"{k * 5 % 17},{k % 3 if k < 2000 else 3},{k % 7}.5\n" for k in range(2500))),
        label="kind",
    )
    assert late.classes == 4


def test_separator_is_taken_from_the_first_line(table):
    found = inspect(table("a;b;label\n" + "".join(f"{k * 7 % 50};{k % 9}.5;{k % 2}\n" for k in range(60))))
    assert found.task["delimiter"] == ";"


def test_columns_that_are_no_features_are_left_out_with_reason(table):
    rows = "".join(f"{k},name {k},2024-01-{1 + k % 28:02d},{k * 7 % 31},{k % 2}\n" for k in range(60))
    found = inspect(table(f"row,who,day,x,label\n{rows}"))
    assert found.task["ignore"] == ["row", "who", "day"]
    assert "categories" not in found.task
    why = {each.choice: each.why for each in found.reasons if each.subject == "left out"}
    assert "a date" in why["day"]
    assert "another value in each row" in why["who"]


def test_column_that_is_left_out_names_how_to_use_it(table):
    rows = "".join(f"{'ab'[k % 2]},same,{k},{k * 7 % 31},{k % 2}\n" for k in range(60))
    found = inspect(table(f"ward,unit,id,x,label\n{rows}"))
    how = {each.choice: each.otherwise for each in found.reasons if each.subject == "left out"}
    assert how == {
        "ward": 'to use it on a node, remove it from ignore, and add "ward" = ["a", "b"] to categories',
        "unit": 'to use it, remove it from ignore, and add "unit" = ["same"] to categories',
        "id": "",
    }


def test_choices_of_the_owner_replace_the_proposal(table):
    path = table(patients())
    found = inspect(path, label="sex", by="diagnosis")
    assert (found.task["target"], found.partition["column"]) == ("sex", "diagnosis")
    assert inspect(path, nodes=5).partition == {"name": "dirichlet", "alpha": 0.5}
    with pytest.raises(ConfigurationError, match="no column 'sox'"):
        inspect(path, label="sox")


def test_folder_with_one_file_is_taken_and_with_several_refused(tmp_path, table):
    path = table(patients())
    (tmp_path / "notes.md").write_text("x")
    assert find_data(tmp_path) == path
    table(patients(), "other.csv")
    with pytest.raises(ConfigurationError, match=r"several data: other.csv, own.csv"):
        find_data(tmp_path)
    with pytest.raises(ConfigurationError, match="does not exist"):
        find_data(tmp_path / "none")


def test_proposal_of_arrays(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((60, 20, 20), np.uint8), y=np.arange(60) % 3)
    found = inspect(tmp_path / "own.npz")
    assert (found.task["name"], found.task["model"], found.classes) == ("classification", {"name": "cnn"}, 3)
    assert "model" not in inspect(tmp_path / "own.npz", has_torch=False).task


def test_array_of_sites_is_said_to_be_unused_before_a_run(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    np.savez(tmp_path / "own.npz", x=x, y=y, site=np.arange(60) % 5)
    found = inspect(tmp_path / "own.npz")
    (said,) = [each for each in found.reasons if each.subject == "array site"]
    assert (said.choice, found.partition["name"]) == ("not used", "dirichlet")
    assert "write the rows to a .csv file with that column" in said.why
    with pytest.raises(ConfigurationError, match=r"leave out --by, or write the rows to a \.csv file"):
        inspect(tmp_path / "own.npz", by="site")
    with pytest.raises(ConfigurationError, match=r"array y; leave out --label$"):
        inspect(tmp_path / "own.npz", label="y")
