"""The command `p2pfl-sim topology`: how fast nodes agree, as text and as JSON, and refusals."""

import json

import pytest

from p2pfl.sim.cli.main import main


def printed(capsys, *arguments):
    assert main(["topology", *arguments]) == 0
    return capsys.readouterr().out


def test_rule_is_shown_with_its_period_and_the_error_of_each_round(capsys):
    lines = printed(capsys, "base-k", "--nodes", "25", "--set", "degree=2").splitlines()
    assert "degree: min 0, mean 1.653, max 2" in lines
    assert "spectral gap: 1" in lines
    assert "period: 6" in lines
    assert "error of 0.001: reached after 6 rounds, 9.92 models and 9.9 MB per node, at 1.0 MB a model" in lines
    assert lines[-7].split()[:3] == ["0", "0", "1"]
    assert lines[-1].split() == ["6", "9.92", "0"]
    bars = [line.count("█") for line in lines[-7:]]
    assert bars == sorted(bars, reverse=True)


def test_static_graph_is_measured_on_request(capsys):
    assert "error" not in printed(capsys, "ring", "--nodes", "12")
    found = json.loads(printed(capsys, "ring", "--nodes", "12", "--error", "0.01", "--model-bytes", "100", "--json"))
    speed = found["agreement"]
    assert speed["errors"][speed["rounds"]] <= 0.01 < speed["errors"][speed["rounds"] - 1]
    assert (speed["models"], speed["bytes"]) == (2 * speed["rounds"], 200 * speed["rounds"])
    late = speed["errors"][-1] / speed["errors"][-2]
    assert late == pytest.approx(1 - found["spectral_gap"], abs=2e-3)


@pytest.mark.slow
def test_nodes_that_never_agree_are_reported(capsys):
    assert "error of 0.1: not reached in 1,000 rounds" in printed(
        capsys, "erdos-renyi", "--nodes", "9", "--set", "p=0", "--error", "0.1"
    )


@pytest.mark.parametrize(
    ("arguments", "drawn"),
    [
        (
            ["base-k", "--nodes", "25", "--set", "degree=2"],
            ["base-k, 25 nodes: repeats after 6 rounds", "round 1", "round 6"],
        ),
        (["exponential", "--nodes", "9"], ["; an arrow leads to the node that fetches"]),
        (["ring", "--nodes", "12"], ["ring, 12 nodes"]),
    ],
)
def test_drawing_has_the_graph_of_each_round_and_the_error(capsys, tmp_path, arguments, drawn):
    pytest.importorskip("matplotlib", reason="needs the extra notebook")
    out = tmp_path / "graph.svg"
    lines = printed(capsys, *arguments, "--svg", str(out)).splitlines()
    assert lines[-1] == f"drawing: {out}"
    text = out.read_text()
    for words in (*drawn, "error of the average"):  # matplotlib draws letters, and has the text in comments
        assert any(words in line for line in text.splitlines() if "<!--" in line), words
    assert "round 7" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hypercube", "--nodes", "9"], "base-k with degree = 1 takes any number"),
        (["base-k", "--set", "k=2"], "topology.degree"),
        (["base-k", "--error", "2"], "--error must be above 0 and below 1, got 2"),
        (["ring", "--svg", "ring.pdf"], "--svg must name a file that ends with .svg, got ring.pdf"),
        (["base-k", "--model-bytes", "0"], "--model-bytes must be 1 or more, got 0"),
    ],
)
def test_refusals_are_one_line(capsys, arguments, words):
    assert main(["topology", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
