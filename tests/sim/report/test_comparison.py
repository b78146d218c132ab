"""Comparison of two folders: differences by seed and node, against their spread."""

import json

import numpy as np
import pytest

from p2pfl.sim.cli.main import main
from p2pfl.sim.report.findings import compare
from p2pfl.sim.report.write import report
from tests.support.report_folders import edges_of, entry, leave, rounds_of
from tests.support.report_pages import figures, rows, texts

MEANS = {  # by folder, run and seed
    "before": {"steady": (0.50, 0.60), "same": (0.70, 0.80), "gone": (0.1, 0.1)},
    "after": {"steady": (0.60, 0.71), "same": (0.75, 0.76), "new": (0.2, 0.2)},
}


def make(path, runs):
    made = [
        (
            entry(name, seed, 2, 1, test={"mean": mean, "nodes": [mean - 0.1 * seed, mean + 0.1 * seed]}),
            rounds_of(2, 1, trained_test_accuracy=0.5),
            edges_of((1, 0, 1)),
        )
        for name, means in runs.items()
        for seed, mean in enumerate(means)
    ]
    return leave(path, made, {"seeds": [0, 1], "run": [{"name": name} for name in runs]})


@pytest.fixture
def two(tmp_path):
    return [make(tmp_path / name, runs) for name, runs in MEANS.items()]


SENTENCES = [
    "steady: after raises the test accuracy by 0.105 (0.655 instead of 0.550), more than the spread of 0.007 over 2 seeds.",
    "same: after raises the test accuracy by 0.005 (0.755 instead of 0.750), not decided: within the spread of 0.064 over 2"
    " seeds.",
]


@pytest.mark.slow
def test_comparison_pairs_runs_by_name_and_seed(two):
    assert compare(two) == SENTENCES
    assert compare(two[:1]) == []


@pytest.mark.slow
def test_one_common_seed_has_its_figures_and_no_spread(tmp_path):
    folders = [make(tmp_path / name, {"a": means}) for name, means in (("x", (0.5, 0.6)), ("y", (0.4,)))]
    assert compare(folders) == [
        "a: y lowers the test accuracy by 0.100 (0.400 instead of 0.500), not decided, because a single seed has no spread."
    ]
    assert rows(report(folders))["a"]["difference"] == "-0.100"


@pytest.mark.slow
def test_comparison_of_equal_figures_says_so(tmp_path):
    folders = [make(tmp_path / name, {"a": (mean,)}) for name, mean in (("x", 0.5), ("y", 0.5001))]
    assert compare(folders) == ["a: y leaves the test accuracy at 0.500, not decided, because a single seed has no spread."]


@pytest.mark.slow
def test_comparison_of_many_runs_is_a_count_and_the_extremes(tmp_path):
    before = {f"run {k}": (0.5, 0.6) for k in range(9)}
    after = {f"run {k}": (0.5 + 0.01 * (k - 2), 0.6 + 0.01 * (k - 2)) for k in range(9)}
    assert compare([make(tmp_path / "before", before), make(tmp_path / "after", after)]) == [
        "Of 9 runs, after improves 6 and worsens 2; 1 is equal. The mean change of the test accuracy is +0.020,"
        " from -0.020 (run 0) to +0.060 (run 8)."
    ]


@pytest.mark.slow
def test_comparison_of_many_equal_runs_says_so(tmp_path):
    runs = {f"run {k}": (0.5, 0.6) for k in range(9)}
    folders = [make(tmp_path / name, runs) for name in ("before", "after")]
    assert compare(folders)[0].startswith("Of 9 runs, after improves 0 and worsens 0; 9 are equal. ")
    mixed = make(tmp_path / "mixed", runs | {"run 1": (0.4, 0.7), "run 2": (0.6, 0.5)})
    assert "; 7 are equal; 2 are not decided. " in compare([folders[0], mixed])[0]


@pytest.mark.slow
def test_comparison_of_a_sweep_names_runs_in_words(tmp_path):
    def draw(path, mean):
        name = "ring, budget.models=0"
        runs = [
            (entry(name, 3, 2, 1, varied={"budget.models": 0}, test={"mean": mean}), rounds_of(2, 1), edges_of((1, 0, 1)))
        ]
        return leave(path, runs, {"seeds": [3], "run": [{"name": name}]})

    folders = [draw(tmp_path / name, mean) for name, mean in (("x", 0.5), ("y", 0.4))]
    assert compare(folders)[0].startswith("ring, models=none: y lowers the test accuracy")
    text = report(folders)
    assert list(rows(text)) == ["ring, models=none"]
    assert "<dt>Seed</dt><dd>3</dd>" in text


@pytest.mark.slow
def test_report_of_two_folders_shows_differences(two):
    text = report(two)
    assert all(sentence in text for sentence in SENTENCES)
    found = figures(text)
    assert list(found["difference"]["runs"]) == ["after: steady", "after: same"]
    np.testing.assert_allclose(found["difference"]["runs"]["after: steady"]["values"], [0.1, 0.11], rtol=1e-5)
    assert (found["difference"]["of"], found["difference"]["labels"]) == ("seed", ["seed 0", "seed 1"])
    np.testing.assert_allclose(found["difference-nodes"]["runs"]["after: same"]["values"], [0.05, 0.05], rtol=1e-5)
    assert texts(text)["comparison"] == [
        "Differences are after minus before, for runs with the same name and the same seed."
    ]


@pytest.mark.slow
def test_report_command_prints_the_comparison(two, tmp_path, capsys):
    folders = [str(path) for path in two]
    assert main(["report", *folders, "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.splitlines() == [*SENTENCES, f"report: {tmp_path / 'page.html'}"]
    assert main(["report", *folders, "--out", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"] == SENTENCES
