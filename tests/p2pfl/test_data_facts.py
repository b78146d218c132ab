"""Facts of what a reader understood."""

import json

from p2pfl.data_facts import ColumnFacts, DataFacts, distinct

LOANS = DataFacts(
    "loans.csv",
    "CSV separated by ';'",
    400,
    (
        ColumnFacts("id", "number", "ignored", 400, (0.0, 399.0)),
        ColumnFacts("income", "number", values=380, range=(-2.5, 3.0), missing=12),
        ColumnFacts("job", "category", values=7, missing=1),
        ColumnFacts("city", "category", values=3),
        ColumnFacts("sex", "category", "sensitive", 2),
        ColumnFacts("paid", "category", "label", 2),
    ),
    {"empty line": 3, "comment line": 0},
    ("loans.csv: check it",),
    ("2 classes",),
)


def test_line_names_format_counts_roles_and_what_was_left_out():
    assert LOANS.line == (
        "loans.csv: CSV separated by ';', 400 samples; 2 classes; 1 number; 3 categories; sensitive sex; label paid;"
        " ignored id; 13 missing values in income, job; 3 empty lines left out"
    )
    assert DataFacts("a", "images", 1).line == "a: images, 1 sample"


def test_json_has_known_facts_only_and_a_limited_list_of_columns():
    found = json.loads(json.dumps(LOANS.to_json()))
    assert found["line"] == LOANS.line
    assert found["columns"][1] == {
        "name": "income",
        "kind": "number",
        "role": "feature",
        "missing": 12,
        "values": 380,
        "range": [-2.5, 3.0],
    }
    assert "range" not in found["columns"][2]
    assert "columns_not_listed" not in found
    wide = DataFacts("a", "CSV", 1, tuple(ColumnFacts(str(k), "number") for k in range(100))).to_json()
    assert (len(wide["columns"]), wide["columns_not_listed"]) == (64, 36)


def test_distinct_keeps_one_of_equal_facts_in_order():
    others = [DataFacts(str(k), "images", k) for k in range(40)]
    again = DataFacts("0", "images", 0)
    assert distinct([*others[:2], again, *others[:2]]) == others[:2]
    assert distinct(others) == others[:16]
