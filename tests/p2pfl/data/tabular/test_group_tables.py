"""Tables with groups: labels that are numbers, and notes on groups, categories and columns without values."""

from p2pfl.data.tabular import table

NUMBERED = """
train = "own.csv"
negative = [0]
positive = [1]
sensitive = ["g"]
[columns]
x = "numeric"
empty = "auto"
job = "auto"
g = "categorical"
y = "label"
"""


def test_numbers_as_labels_are_compared_by_value(tmp_path):
    (tmp_path / "own.toml").write_text(NUMBERED)
    lines = [
        f"{k * 7 % 20},,{'?' if k == 3 else 'ab'[k // 2 % 2]},{'' if k == 4 else 'mf'[k % 2]},{k % 3 % 2}.0"
        for k in range(20)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["x,empty,job,g,y", *lines]))
    found = table.load(str(tmp_path / "own.toml"))
    assert found.train.labels.tolist() == [k % 3 % 2 for k in range(20)]
    assert [note.partition("own.csv: ")[2] for note in found.facts[0].notes] == [
        "job: '?' (first in line 5) is a category of its own; add it to `missing` if it denotes a missing value",
        "g: 1 row without a value: a group of their own; remove them if they have none",
        "empty: no row has a value",
    ]


def test_one_class_and_test_rows_of_a_new_category_are_noted(tmp_path):
    (tmp_path / "own.toml").write_text('test = "test.csv"' + NUMBERED.replace('empty = "auto"\n', ""))
    (tmp_path / "own.csv").write_text("x,job,g,y\n" + "".join(f"{k * 7 % 20},{'ab'[k % 2]},m,1\n" for k in range(20)))
    (tmp_path / "test.csv").write_text("x,job,g,y\n1.5,c,m,0\n2.5,a,m,1\n")
    first, second = (facts.notes for facts in table.load(str(tmp_path / "own.toml")).facts)
    assert first[0].endswith("own.csv: all rows have a label of class 1")
    assert second[0].endswith("test.csv: job: 1 row has a category that no training row has, such as 'c'")
