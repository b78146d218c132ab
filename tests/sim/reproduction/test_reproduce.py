"""`p2pfl-sim reproduce`: the list of reproduced tables, and new runs of selected ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError, RunError
from p2pfl.sim import reproduction
from p2pfl.sim.cli import reproduce
from p2pfl.sim.cli.main import main
from p2pfl.sim.execution.run_order import Listener
from p2pfl.sim.execution.runner import run_all
from p2pfl.sim.reproduction import MOST_ROWS, CatalogueEntry, Measured, RowRecorder, markdown, without_recorded
from p2pfl.sim.results.results import summarise
from p2pfl.sim.scenario import scenario
from p2pfl.sim.scenario.scenario import load, resolve, shipped_scenarios
from tests.support.readme import ROOT


def describe(capsys, *arguments):
    code = main(["reproduce", *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


@pytest.mark.slow
def test_reproduce_lists_every_paper_table_and_row(capsys):
    code, out, _ = describe(capsys, "--json")
    listed = {each["scenario"]: each for each in json.loads(out)["scenarios"]}
    assert code == 0
    assert set(listed) == set(shipped_scenarios())
    for name, each in listed.items():
        file = load(name)
        rows = [(name, runs[0].paper) for name, runs in file.rows().items()]
        assert [(row["name"], row["paper"]) for row in each["rows"]] == rows
        assert (each["paper"], each["table"]) == (file.source, file.table)
        assert len(each["claims"]) == len(file.claims)


@pytest.mark.slow
def test_measured_figures_belong_to_existing_rows():
    for name, forms in reproduction.load_measured(reproduction.FILE).items():
        file = load(name)
        for form, kept in forms.items():
            assert form == "full" or form in file.forms, name
            assert {*kept.figures} <= {*file.rows()}, name
            assert bool(kept.figures) == bool(kept.version), name


def test_reproduce_on_terminal_lists_the_rows(capsys):
    code, out, _ = describe(capsys, "dac-synthetic")
    assert code == 0
    assert "`dac-synthetic`" in out
    assert "│ inverse-loss/fedsim " in out


STUDY = """
nodes = 2
rounds = 1
source = "A paper"
table = "table 7"
task = { name = "digits", samples = 20 }
policy = { name = "local" }

[forms.short]
nodes = 3

[[run]]
name = "alone"
paper = 0.5

[[claim]]
run = "alone"
above = 0.05
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A folder for shipped scenarios, without measured figures."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "measured.json").write_text("{}")
    monkeypatch.setattr(scenario, "SHIPPED", tmp_path / "scenarios")
    monkeypatch.setattr(reproduction, "FILE", tmp_path / "measured.json")
    monkeypatch.chdir(tmp_path)

    def add(name, text=STUDY, old="", new=""):
        (tmp_path / "scenarios" / f"{name}.toml").write_text(text.replace(old, new) if old else text)

    return add


@pytest.mark.slow
def test_reproduce_short_runs_and_checks_claims(study, capsys):
    study("study")
    code, out, _ = describe(capsys, "--short", "--out", "again")
    assert code == 0
    assert "study, form short: 1 row in " in out
    assert "    alone 0." in out
    assert "> 0.050: held" in out
    assert out.endswith("1 done, 0 skipped, 0 failed\n")
    assert json.loads(Path("again/study-short/summary.json").read_text())["runs"][0]["nodes"] == 3
    code, out, _ = describe(capsys, "--short", "--out", "again", "--record")
    assert "study, form short: 1 row, taken from the folder\n" in out
    assert reproduction.load_measured(reproduction.FILE) == {}


@pytest.mark.slow
def test_reproduce_with_unexpected_claim_exits_with_1(study, capsys):
    study("study", old="above = 0.05", new="above = 1.05")
    code, out, _ = describe(capsys, "--short", "--out", "again", "--json")
    (found,) = json.loads(out)["scenarios"]
    assert code == 1
    assert [(claim["held"], claim["stated"]) for claim in found["claims"]] == [(False, False)]
    study("study", old="above = 0.05", new='above = 1.05\nholds = false\nreason = "few rounds"')
    code, out, _ = describe(capsys, "--short", "--out", "again")
    assert code == 0
    assert "> 1.050: not held\n" in out


@pytest.mark.slow
def test_claims_apply_to_short_form_if_present(study, capsys):
    study("study", old="above = 0.05", new="above = 1.05")
    assert describe(capsys, "--full", "--out", "again")[0] == 0
    study("study", STUDY.replace("[forms.short]\nnodes = 3", ""), old="above = 0.05", new="above = 1.05")
    assert describe(capsys, "--short", "--out", "again")[0] == 1


@pytest.mark.slow
def test_reproduce_continues_after_a_failure(study, capsys, monkeypatch):
    monkeypatch.delenv("P2PFL_DATA", raising=False)
    study("a-broken-one", old='name = "digits"', new='name = "digits", lr = -1.0')
    study("b-without-data", old='{ name = "digits", samples = 20 }', new='{ name = "images", data = "mnist" }')
    study("c-whole")
    code, out, err = describe(capsys, "--short", "--out", "again")
    assert code == 1
    assert err.startswith("a-broken-one: failed: run 'alone': ")
    assert err.count("failed: ") == 1
    assert "b-without-data: skipped: run 'alone': the data set 'mnist' needs the folder of the data sets" in out
    assert "c-whole, form short: 1 row in " in out
    assert out.endswith("1 done, 1 skipped, 1 failed\n")


@pytest.mark.slow
def test_reproduce_record_keeps_and_lists_figures(study, capsys):
    study("study")
    assert describe(capsys, "--short", "--out", "again", "--record")[0] == 0
    kept = reproduction.load_measured(reproduction.FILE)["study"]["short"]
    assert kept.seeds == [0]
    assert kept.seconds > 0
    figure = json.loads(Path("again/study-short/summary.json").read_text())["table"][0]["mean"]
    assert kept.figures == {"alone": float(f"{figure:.4g}")}
    reproduction.record(reproduction.FILE, "study", "full", Measured(7200.0))
    _, out, _ = describe(capsys, "--markdown")
    assert out.startswith("## Counts by paper\n")
    assert "## A paper\n\n### `study`: table 7\n\nFull form: not run, about 2 h. Short form: 1 seed, " in out
    assert "| row | printed | short form |\n| --- | ---: | ---: |\n" in out
    assert f"| alone | 0.500 | {kept.figures['alone']:.3f} |" in out
    assert "| alone above 0.05 | ours | held |" in out
    reproduction.record(reproduction.FILE, "study", "full", Measured(9.0, seeds=[0], version="1", figures={"alone": 0.04}))
    assert "| alone above 0.05 | ours | not held | held |" in describe(capsys, "--markdown")[1]


TWO_ROWS = STUDY + '\n[[run]]\nname = "together"\npolicy = { name = "random" }\n'


@pytest.mark.slow
def test_reproduce_record_keeps_rows_of_a_failed_command(study, capsys):
    study("study", TWO_ROWS)
    Path("again/study-short/rounds.parquet").mkdir(parents=True)  # the files of the whole run cannot be written
    code, _, err = describe(capsys, "--short", "--out", "again", "--record")
    assert code == 1
    assert "study: failed: " in err
    kept = reproduction.load_measured(reproduction.FILE)["study"]["short"]
    assert set(kept.figures) == {"alone", "together"}  # in the order in which they were finished
    assert kept.seconds is None
    Path("again/study-short/rounds.parquet").rmdir()
    code, out, _ = describe(capsys, "--short", "--out", "again", "--record")
    assert "study, form short: 2 rows\n" in out
    assert reproduction.load_measured(reproduction.FILE)["study"]["short"] == kept


@pytest.mark.slow
def test_reproduce_resume_skips_recorded_rows(study, capsys):
    study("study", TWO_ROWS)
    reproduction.record(reproduction.FILE, "study", "short", Measured(7.0, seeds=[0], version="1", figures={"alone": 0.25}))
    assert describe(capsys, "--short", "--out", "again", "--record", "--resume")[0] == 0
    kept = reproduction.load_measured(reproduction.FILE)["study"]["short"]
    assert [*kept.figures] == ["alone", "together"]
    assert (kept.figures["alone"], kept.seconds) == (0.25, 7.0)
    assert [run["name"] for run in json.loads(Path("again/study-short/summary.json").read_text())["runs"]] == ["together"]
    out = describe(capsys, "--short", "--out", "more", "--record", "--resume")[1]
    assert "study, form short: 2 rows, recorded before\n" in out
    assert not Path("more").exists()


def _change_inputs_of_recorded_rows(file):
    """Check which rows are run again when what they were computed from differs."""
    book = Path("changed.json")
    kept = reproduction.load_measured(reproduction.FILE)["study"]["short"]
    alone, together = kept.inputs["alone"], kept.inputs["together"]
    other = replace(alone, versions=alone.versions | {"numpy": "0.1"})
    reproduction.record(book, "study", "short", replace(kept, inputs={"alone": other, "together": together}))
    left = without_recorded(file, book)
    assert [run.name for run in left.runs] == ["alone"]
    assert left.notes == (f"alone was computed again: numpy 0.1 -> {np.__version__}",)
    assert without_recorded(file, book, different_bits=True).runs == ()
    other = replace(together, settings={"the scenario": "0" * 64}, files=together.files | {"task.data d.csv": "0"})
    reproduction.record(book, "study", "short", replace(kept, inputs={"alone": alone, "together": other}))
    left = without_recorded(file, book)
    assert [run.name for run in left.runs] == ["together"]
    assert left.notes == ("together was computed again: task.data d.csv is missing, the scenario has changed",)
    reproduction.record(book, "study", "short", replace(kept, inputs={}))
    left = without_recorded(file, book)
    assert left.runs == ()
    assert left.notes == ("recorded by an earlier version, so changes of their inputs are not known: alone, together",)


@pytest.mark.slow
def test_rows_are_recorded_when_their_last_seed_is_finished(study):
    study("study", TWO_ROWS, old="rounds = 1", new="rounds = 1\nseeds = [0, 1]")
    file = load("study", ["form=short"])
    recorder = RowRecorder(file, reproduction.FILE, {})
    rows = []

    def finished(number, result):
        recorder.finished(number, result)
        rows.append([*reproduction.load_measured(reproduction.FILE).get("study", {}).get("short", Measured()).figures])

    results = run_all(file, listener=Listener(finished=finished))
    assert rows == [[], ["alone"], ["alone"], ["alone", "together"]]
    kept = reproduction.load_measured(reproduction.FILE)["study"]["short"]
    assert kept.seeds == [0, 1]
    assert [*kept.by_seed["mean"]] == ["alone", "together"]
    assert all(np.mean(values) == pytest.approx(kept.figures[row], rel=1e-3) for row, values in kept.by_seed["mean"].items())
    assert without_recorded(file, reproduction.FILE).runs == ()
    _change_inputs_of_recorded_rows(file)
    summary = summarise(file, results)
    summary["table"][1]["by_seed"]["against.times_bytes"] = [2.0, 3.0]  # only the whole table has it
    recorder.ended(file, summary)
    kept = reproduction.load_measured(reproduction.FILE)["study"]["short"]
    assert kept.by_seed["against.times_bytes"] == {"together": [2.0, 3.0]}
    assert [*kept.by_seed["mean"]] == ["alone", "together"]
    assert len(without_recorded(replace(file, seeds=(0, 1, 2)), reproduction.FILE).runs) == 2


def test_row_without_the_figure_is_named_and_the_others_are_recorded(study):
    study("study", TWO_ROWS, old='table = "table 7"', new='table = "table 7"\nfigure = "equal.seconds"')
    file = load("study", ["form=short"])
    table = [{"name": name, "equal": {"seconds": value}} for name, value in (("alone", 0.5), ("together", None))]
    summary = {"table": table, "runs": [], "seeds": [0], "version": "1"}
    assert RowRecorder(file, reproduction.FILE, {}).ended(file, summary) == (
        "no figure equal.seconds for together: some node had not ended its first round by then"
    )
    assert reproduction.load_measured(reproduction.FILE)["study"]["short"].figures == {"alone": 0.5}


def _summary(rows, **inputs):
    """Return what is recorded of a summary with one seed: rows with their figures, and the digest of the file of each."""
    table = [{"name": row, "by_seed": {name: [value] for name, value in of.items()}} | of for row, of in rows.items()]
    runs = [{"name": row, "inputs": {"task.data d.csv": digest}} for row, digest in inputs.items()]
    return {"table": table, "runs": runs, "seeds": [0], "version": "1"}


def test_figures_at_equal_measures_are_recorded_of_whole_runs_only(study):
    """The measures of a part are what its own rows have spent, so its figures cannot stand next to the others."""
    study("study", TWO_ROWS + '[[run]]\nname = "last"\n', old='table = "table 7"', new='figure = "equal.seconds"')
    file = load("study", ["form=short"])
    table = [{"name": name, "equal": {"seconds": 0.5}, "by_seed": {"equal.seconds": [0.5]}} for name in file.rows()]
    summary = {"table": table[:2], "runs": [], "seeds": [0], "version": "1"}
    part = file.part(["alone", "together"], [0])
    assert RowRecorder(part, reproduction.FILE, {}).ended(part, summary) == (
        "no figure equal.seconds for alone; together: it is taken at what all rows have spent, so they must be run together"
    )
    assert reproduction.load_measured(reproduction.FILE) == {}
    assert RowRecorder(file, reproduction.FILE, {}).ended(file, summary | {"table": table}) == ""
    kept = reproduction.load_measured(reproduction.FILE)["study"]["short"]
    assert kept.by_seed == {"equal.seconds": {"alone": [0.5], "together": [0.5], "last": [0.5]}}
    reproduction.record(reproduction.FILE, "study", "short", replace(kept, inputs={}))  # as of an earlier version
    assert without_recorded(file, reproduction.FILE).runs == ()
    figures = {row: value for row, value in kept.figures.items() if row != "last"}
    reproduction.record(reproduction.FILE, "study", "short", replace(kept, figures=figures, inputs={}))
    left = without_recorded(file, reproduction.FILE)
    assert [run.name for run in left.runs] == ["alone", "together", "last"]
    assert left.notes[-1].startswith("all rows were computed again, because of the figure equal.seconds: ")


def test_row_of_other_inputs_keeps_no_figure_of_the_old_ones(study):
    study("study", TWO_ROWS)
    file = load("study", ["form=short"])
    recorder = RowRecorder(file, reproduction.FILE, {})
    rows = {"alone": {"mean": 0.5, "bytes": 7.0}, "together": {"mean": 0.6, "bytes": 8.0}}
    recorder.ended(file, _summary(rows, alone="a", together="b"))
    rows = {"alone": {"mean": 0.7}, "together": {"mean": 0.6}}
    recorder.ended(file, _summary(rows, alone="changed", together="b"))
    kept = reproduction.load_measured(reproduction.FILE)["study"]["short"]
    assert kept.by_seed == {"mean": {"alone": [0.7], "together": [0.6]}, "bytes": {"together": [8.0]}}


def test_figure_that_is_not_finite_is_not_recorded(study):
    """JSON has no text for it, and null is no figure of the file."""
    study("study", TWO_ROWS)
    file = load("study", ["form=short"])
    recorder = RowRecorder(file, reproduction.FILE, {})
    said = recorder.ended(file, _summary({"alone": {"mean": float("nan")}, "together": {"mean": 0.6}}))
    assert said == "no figure mean for alone"
    assert reproduction.load_measured(reproduction.FILE)["study"]["short"].figures == {"together": 0.6}


def test_form_that_differs_in_seeds_only_is_found_by_them(study):
    study("study", old="nodes = 3", new="seeds = [0, 1]")
    whole, short = load("study"), load("study", ["form=short"])
    assert [reproduction.form_of(each)[0] for each in (whole, short)] == ["full", "short"]
    assert reproduction.form_of(replace(whole, seeds=(0, 1, 2)))[0] == "full"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--skip-recorded"], "--skip-recorded needs --record FILE, the file of measured figures"),
        (["--record", "measured.json", "--set", "nodes=4"], "this command holds a run of study that matches none of its"),
    ],
)
def test_run_with_invalid_recording_reports_one_line(study, capsys, arguments, message):
    study("study")
    assert main(["run", "study", "--out", "again", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not Path("again").exists()


def test_reproduce_without_measured_file_lists_printed_ones(study, capsys):
    study("study")
    reproduction.FILE.unlink()
    code, out, err = describe(capsys, "--markdown")
    assert code == 0
    assert "```text\n1 row not run yet: alone (0.500)\n```" in out
    assert err == f"no measured figures: {reproduction.FILE} does not exist; it is part of the repository\n"
    for options in (["--short", "--record"], ["--take", "again"]):
        code, out, err = describe(capsys, *options)
        assert (code, out) == (2, "")
        assert err == f"{reproduction.FILE} does not exist; name the file of measured figures with --measured FILE\n"
        assert not Path("runs").exists()


@pytest.mark.slow
def test_reproduce_measured_option_names_the_file(study, capsys):
    study("study")
    assert describe(capsys, "--short", "--out", "again", "--record", "--measured", "mine.json")[0] == 0
    assert [*reproduction.load_measured(Path("mine.json"))["study"]["short"].figures] == ["alone"]
    assert reproduction.load_measured(reproduction.FILE) == {}
    assert "| alone | 0.500 | 0." in describe(capsys, "--markdown", "--measured", "mine.json")[1]


def test_measured_figures_are_not_part_of_the_packages():
    assert reproduction.FILE == ROOT / "results" / "measured.json"
    assert reproduction.FILE.exists()


def test_reproduce_leaves_unknown_figures_empty(study, capsys):
    more = """
[[run]]
name = "two"

[[claim]]
run = ["alone", "two"]
above = 0.05

[[claim]]
run = "alone"
below = 1.0
figure = "std"
"""
    study("study", STUDY + more)
    reproduction.record(reproduction.FILE, "study", "full", Measured(9.0, seeds=[0], version="1", figures={"alone": 0.5}))
    out = describe(capsys, "--markdown")[1]
    assert "| alone above 0.05 | ours | held |" in out
    assert "| alone, two above 0.05 | ours |  |" in out
    assert "| std of alone below 1 | ours |  |" in out


@pytest.mark.slow
def test_reproduce_take_accepts_unchanged_runs_only(study, capsys):
    study("study", STUDY + '\n[[run]]\nname = "together"\npolicy = { name = "random" }\n')
    for name, *options in (("one", "--only", "alone"), ("two", "--only", "together"), ("bent", "--set", "nodes=4")):
        assert main(["run", "study", *options, "--engine", "local", "--no-report", "--out", name]) == 0
    capsys.readouterr()
    assert describe(capsys, "--take", "one", "two") == (0, "study, form full: alone\nstudy, form full: together\n", "")
    assert [*reproduction.load_measured(reproduction.FILE)["study"]["full"].figures] == ["alone", "together"]
    message = "bent holds a run of study that matches none of its current forms: full, short\n"
    assert describe(capsys, "--take", "bent") == (2, "", message)
    assert describe(capsys, "--take", "nowhere")[2].startswith("nowhere holds no finished run: ")
    Path("interrupted").mkdir()
    Path("interrupted", "scenario.toml").touch()
    expected = "interrupted is not finished; continue with: p2pfl-sim run --resume interrupted"
    assert describe(capsys, "--take", "interrupted")[2].strip() == expected
    assert describe(capsys, "study", "--take", "one")[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["dac-synthetik"],
            "unknown scenario 'dac-synthetik'; did you mean 'dac-synthetic', 'dac-synthetic-default' or 'praffl-synthetic'?",
        ),
        (["--record"], "--record and --out need a form: add --smoke, --short or --full"),
        (["--short", "--resume"], "--resume needs --record; without it only --out DIR continues an earlier command"),
        (["--smoke", "--record"], "--record needs --short or --full; figures of the smoke form are not recorded"),
    ],
)
def test_reproduce_with_invalid_arguments_reports_one_line(capsys, arguments, message):
    assert describe(capsys, *arguments) == (2, "", message + "\n")


def test_reproduce_reports_any_error_as_failed(study, tmp_path):
    study("study")
    file = load("study")

    def outcome(ends_with):
        def command(arguments):
            assert arguments == ["run", "study", "--set", "form=short", "--out", f"{tmp_path}/study-short", "--json"]
            if isinstance(ends_with, Exception):
                raise ends_with
            return ends_with

        found = reproduce.run(file, "short", tmp_path, command, quiet=True)
        return found.state, found.reason

    assert outcome(RunError("it stopped")) == ("failed", "it stopped")
    assert outcome(ZeroDivisionError("a\nmistake")) == ("failed", "ZeroDivisionError: a mistake")
    assert outcome(1) == ("failed", "the command ended with exit code 1")


def test_reproduce_resumes_interrupted_run(study, tmp_path):
    study("study")
    asked = []

    def command(arguments):
        asked.append(arguments)
        (tmp_path / "study-short").mkdir(exist_ok=True)
        (tmp_path / "study-short" / "scenario.toml").write_text("")
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            reproduce.run(load("study"), "short", tmp_path, command, quiet=False)
    assert asked[0][:2] == ["run", "study"]
    assert asked[1] == ["run", "--resume", f"{tmp_path}/study-short"]


@pytest.mark.slow
def test_reproduce_smoke_runs_and_skips(capsys, monkeypatch, tmp_path):
    """.ci/run runs all scenarios; this test only some."""
    assert "\np2pfl-sim reproduce --smoke" in (ROOT / ".ci" / "run").read_text()
    monkeypatch.delenv("P2PFL_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    code, out, err = describe(capsys, "codecs-one-byte-budget", "dac-cifar100", "--smoke", "--out", "again")
    assert (code, err) == (0, "")
    assert "codecs-one-byte-budget, form smoke: 8 rows in " in out
    assert "dac-cifar100: skipped: run 'local': the data set 'cifar100' needs the folder of the data sets" in out
    assert (tmp_path / "again" / "codecs-one-byte-budget-smoke" / "report.html").exists()


def test_markdown_counts_figures_and_claims_by_paper():
    runs = [
        {"name": name, "nodes": k + 1, "paper": paper}
        for k, (name, paper) in enumerate(zip("abc", (0.5, 0.6, 0.7), strict=True))
    ]
    claims = [
        {"run": "a", "below": "b", "paper": True},
        {"run": "b", "below": "c", "paper": True},
        {"run": "c", "above": "a"},
    ]
    file = resolve({"source": "A paper", "run": runs, "claim": claims}, [], "study", ".")
    by_seed = {"mean": {"a": [0.48, 0.5, 0.52], "b": [0.68, 0.7, 0.72]}}
    full = Measured(1.0, seeds=[0, 1, 2], version="1", figures={"a": 0.5, "b": 0.7}, by_seed=by_seed)
    short = Measured(1.0, seeds=[0], version="1", figures={"a": 0.3, "b": 0.2, "c": 0.1})
    page = markdown([CatalogueEntry(file, {"full": full, "short": short})])
    assert "| A paper | 3 | 2 | 1 | 1 of 2 | 1 of 2 |" in page
    assert "| a below b | paper | held | not held |" in page


def test_further_printed_figures_have_a_table():
    raw = {"source": "A paper", "run": [{"name": "a"}], "printed": {"objectives.igd": {"a": 1.25}}}
    file = resolve(raw, [], "study", ".")
    assert resolve(file.to_toml(), [], "study", ".").printed == file.printed
    full = Measured(1.0, seeds=[0, 1], version="1", figures={"a": 0.5}, by_seed={"objectives.igd": {"a": [1.0, 2.0]}})
    page = markdown([CatalogueEntry(file, {"full": full})])
    assert "Further figure: igd.\n\n| row | printed | full form |\n| --- | ---: | ---: |\n| a | 1.25 | 1.50 |" in page
    with pytest.raises(ConfigurationError, match=r"study: printed\.objectives\.igd: unknown run 'b'"):
        resolve(raw | {"printed": {"objectives.igd": {"b": 1.25}}}, [], "study", ".")
    with pytest.raises(ConfigurationError, match=r"study: printed\.objectives\.igd must be a table, got 1\.25"):
        resolve(raw | {"printed": {"objectives.igd": 1.25}}, [], "study", ".")


def test_markdown_counts_rows_of_a_large_study():
    each = {"task.lr": [k / 1000 for k in range(1, MOST_ROWS + 3)]}
    file = resolve({"nodes": 2, "rounds": 1, "run": [{"name": "many", "each": each}]}, [], "study", ".")
    first, *rest = file.rows()
    assert f"{len(rest) + 1} rows are not run yet." in markdown([CatalogueEntry(file)])
    text = markdown([CatalogueEntry(file, {"full": Measured(seeds=[0], figures=dict.fromkeys(rest, 0.5))})])
    assert f"The figures of its {len(rest)} rows are in `results/measured.json`." in text
    assert rest[0] not in text
    assert f"1 row not run yet: {first}" in text


@pytest.mark.slow
def test_markdown_of_a_large_study_has_the_strongest_attacks():
    each = {"attack.name": ["ipm", "scale"], "attack.share": [0.3, 0.05], "robust": ["none", "rfa"]}
    runs = [
        {"name": "lied", "each": each | {"task.lr": [k / 1000 for k in range(1, MOST_ROWS // 8 + 2)]}},
        {"name": "clean", "each": {"robust": ["none", "rfa"], "task.lr": [0.001]}},
    ]
    file = resolve({"nodes": 20, "rounds": 1, "run": runs}, [], "study", ".")
    figures = dict.fromkeys(file.rows(), 0.9)
    figures["lied, attack.name=scale, attack.share=0.05, robust=rfa, task.lr=0.001"] = 0.25
    figures["clean, robust=rfa, task.lr=0.001"] = 0.95
    text = markdown([CatalogueEntry(file, {"full": Measured(seeds=[0], figures=figures)})])
    assert "| settings | rule | no attack | 5 % | 30 % |\n" in text
    assert "| lr 0.001 | rfa | 0.950 | 0.250 (scale) | 0.900 (ipm) |" in text
    assert "| lr 0.002 | none |  | 0.900 (ipm) | 0.900 (ipm) |" in text
