"""200 files with random graphs, in many formats and with known faults: each is read right, noted or refused.

`python -m pytest tests/topologies/test_generated_graphs.py -n 0 -s` prints the number of each outcome by format.
"""

from collections import Counter
from random import Random

import pytest

from tests.support.graph_files import FAULTS, FORMS, WITH_FRAMES, random_graph, verdict

FILES = 200
OUTCOMES = ("right", "noted", "refused", "wrong")


@pytest.mark.slow
@pytest.mark.skipif(not WITH_FRAMES, reason="needs the extras notebook and polars")
def test_generated_graph_files_are_read_right_noted_or_refused(tmp_path):
    rows = {}
    wrong = []
    for number in range(FILES):
        rng = Random(f"graph file {number}")
        form = list(FORMS)[number % len(FORMS)]
        fault = "none" if number < len(FORMS) else rng.choice(list(FAULTS))
        outcome, text = verdict(tmp_path, random_graph(rng), form, fault, rng)
        rows.setdefault(form, Counter())[outcome] += 1
        if outcome == "wrong":
            wrong.append(f"{form}, {fault}: {text}")
    print(f"\n{'format':45}" + "".join(f"{outcome:>13}" for outcome in OUTCOMES))
    for form, counts in rows.items():
        print(f"{form:45}" + "".join(f"{counts[outcome] or '':>13}" for outcome in OUTCOMES))
    total = sum(rows.values(), Counter())
    print(f"{'all':45}" + "".join(f"{total[outcome]:>13}" for outcome in OUTCOMES))
    assert wrong == []
    assert total.total() == FILES
    assert total["right"] + total["noted"] > FILES // 3


NAMES = ("networkx edge list", "networkx weighted", "GraphML", "GML", "pandas", "polars", "NumPy", "R", "SNAP", "gzip")
READ = [
    form
    for form in FORMS
    if form.startswith(NAMES)
    or form in ("JSON", "JSON with links", "networkx adjacency list")
]  # fmt: skip
NEVER = {"pandas without header, with index", "pandas, default names", "pandas, other names"}


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in READ if form not in NEVER])
def test_usual_forms_of_libraries_are_read(tmp_path, form):
    """At least half of random graphs are read; the others have names that the format cannot keep apart."""
    found = Counter()
    for number in range(30):
        rng = Random(f"{form} {number}")
        found[verdict(tmp_path, random_graph(rng), form, "none", rng)[0]] += 1
    assert found["wrong"] == 0
    assert found["right"] + found["noted"] >= 15
