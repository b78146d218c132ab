"""Searches for a front: determinism over workers, interruption and resumption, their files, and refusals."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import duckdb
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from p2pfl.pareto_metrics import hypervolume, non_dominated
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.cli.main import main
from p2pfl.sim.cli.pareto import begin
from p2pfl.sim.pareto import Candidates, Job, Solved, candidate, front_of_search, search_all, solve
from p2pfl.sim.scenario.scenario import Search, jobs_of, load, resolve
from p2pfl.task import Part, make_task
from tests.support import forked
from tests.support.browser import CHROMIUM, browser, opened_report
from tests.support.depth import spread
from tests.support.processes import PATIENCE

STUDY = """
nodes = 2
rounds = 3
evaluate_every = 0
seeds = [0, 1]
task = { name = "deep-sea-treasure", steps = 300, lr = 1.0, explore_rounds = 3.0, preference = [0.5, 0.5] }
policy = { name = "fedavg" }
search = { iterations = 4, samples = 3, step = 0.2 }
source = "A paper"
figure = "objectives.hypervolume"

[[run]]
name = "cold"
paper = 990.0

[[run]]
name = "warm/start"
search = { warm_start = true }

[forms.one.runs]
cold = {}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)


def pareto(capsys, *arguments):
    code = main(["pareto", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def front_files(folder):
    """Return the contents of the files of a search that contain no times."""
    paths = [path for path in Path(folder).rglob("*") if path.suffix in (".parquet", ".safetensors", ".toml")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def summary_of(folder):
    return json.loads((Path(folder) / "summary.json").read_text())


def without_times(summary):
    runs = [{key: value for key, value in run.items() if key != "time"} for run in summary["runs"]]
    table = [{key: value for key, value in row.items() if key != "seconds"} for row in summary["table"]]
    return summary | {"runs": runs, "table": table}


def rows(folder, what, where="true"):
    query = f"select {what} from '{folder}/candidates.parquet' where {where} order by run, seed, candidate"
    return duckdb.sql(query).fetchall()


# Results


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folder of a complete search with two processes."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "study.toml").write_text(STUDY)
    assert main(["pareto", str(folder / "study.toml"), "--workers", "2", "--out", str(folder / "out"), "--json"]) == 0
    return folder / "out"


@pytest.mark.slow
def test_front_covers_all_candidates_and_models_match(whole):
    summary = summary_of(whole)
    assert [run["name"] for run in summary["runs"]] == ["cold", "cold", "warm/start", "warm/start"]
    for run in summary["runs"]:
        points = np.array(run["objectives"]["nodes"])
        assert points.shape == (12, 2)
        front = points[run["front"]]
        assert sorted(map(tuple, front)) == sorted(map(tuple, non_dominated(points)))
        assert run["hypervolumes"][-1] == run["objectives"]["hypervolume"] == hypervolume(points, (0, -50))
        assert run["hypervolumes"] == sorted(run["hypervolumes"])
        assert len(run["hypervolumes"]) == 4
        folder = whole / "models" / run["name"].replace("/", "-") / f"seed-{run['seed']}"
        assert sorted(path.name for path in folder.iterdir()) == sorted(f"candidate-{k}.safetensors" for k in run["front"])
        for k in run["front"]:
            file = folder / f"candidate-{k}.safetensors"
            with safe_open(file, "numpy") as opened:
                about = json.loads(opened.metadata()["p2pfl"])
            assert about["preference"] == dict(zip(("treasure", "time"), run["preferences"][k], strict=True))
            task = make_task("deep-sea-treasure", {"preference": run["preferences"][k]}, Part(0, 1), 0)
            returns = task.learner(RandomStreams(0, "any")).returns(task.layout.flatten(load_file(file)))
            assert returns.tolist() == points[k].tolist() == list(about["test"].values())


@pytest.mark.slow
def test_pareto_table_has_means_and_figure_of_the_paper(whole):
    summary = summary_of(whole)
    for row in summary["table"]:
        runs = [run for run in summary["runs"] if run["name"] == row["name"]]
        found = [run["objectives"]["hypervolume"] for run in runs]
        assert row["objectives"]["hypervolume"] == pytest.approx(np.mean(found))
        assert row["std"] == pytest.approx(np.std(found, ddof=1))
        assert (row["seeds"], row["candidates"]) == (2, 12)
    assert [row.get("paper") for row in summary["table"]] == [990.0, None]


def test_candidate_equals_training_with_its_preference():
    file = load("study.toml", ["form=one", "seed=1"])
    (search,) = begin(file)
    job = search.next()
    solved = solve(job)
    task = job.scenario.task
    assert sum(task["preference"]) == pytest.approx(1)
    nodes = [make_task("deep-sea-treasure", {k: v for k, v in task.items() if k != "name"}, Part(k, 2), 1) for k in (0, 1)]
    learners = [node.learner(RandomStreams(1, f"node-{k}")) for k, node in enumerate(nodes)]
    params = nodes[0].initial(1)
    for round in (1, 2, 3):
        both = [learner.train(params, round=round) for learner in learners]
        params = np.mean(both, 0, dtype=np.float64).astype(np.float32)
    assert solved.params == pytest.approx(params, abs=1e-6)
    assert solved.values.tolist() == learners[0].returns(solved.params).tolist()


@pytest.mark.slow
def test_warm_start_uses_nearest_earlier_preference(whole):
    assert {start for (start,) in rows(whole, "started_from", "run = 'cold'")} == {-1}
    found = rows(whole, "candidate, iteration, started_from, preference_treasure", "run = 'warm/start' and seed = 0")
    assert [start for _, iteration, start, _ in found if iteration == 1] == [-1] * 3
    for _, iteration, start, weight in found[3:]:
        before = {number: abs(other - weight) for number, other_iteration, _, other in found if other_iteration < iteration}
        assert before[start] == pytest.approx(min(before.values()))


def test_solve_starts_from_the_given_model():
    row = jobs_of(load("study.toml", ["form=one", "rounds=0"]))[0]
    model = np.arange(440, dtype=np.float32)
    solved = solve(Job(0, candidate(row, np.array([0.3, 0.7])), model))
    assert solved.params.tolist() == model.tolist()


def test_front_of_search_drops_repeated_and_left_out_points():
    points = np.array([[1, 0], [0, 1], [1, 0], [0.5, 0.5], [0, 0], [2, 2]], np.float64)
    assert front_of_search(points, [5]) == [0, 1, 3]
    assert front_of_search(points, []) == [5]


def test_candidates_columns_match_documentation(whole):
    text = (Path(__file__).parents[3] / "docs" / "reference" / "files.md").read_text()
    table = text.partition("### Columns of `candidates.parquet`")[2].partition("###")[0]
    described = {name for row in table.splitlines() if row[:1] == "|" for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    found = {row[0] for row in duckdb.sql(f"describe select * from '{whole}/candidates.parquet'").fetchall()}
    assert {re.sub("(treasure|time)$", "OBJECTIVE", name) for name in found} == described


# Determinism


@pytest.mark.slow
def test_search_ignores_number_of_processes(capsys, whole):
    code, _, err = pareto(capsys, "study.toml", "--workers", "1", "--out", "here", "--no-report")
    assert code == 0
    assert "cold, seed 0: iteration 4 of 4, hypervolume " in err
    assert front_files("here") == front_files(whole)
    assert without_times(summary_of("here")) == without_times(summary_of(whole))


@pytest.mark.slow
def test_search_ignores_order_of_solutions():
    def searched(order):
        (search,) = begin(load("study.toml", ["form=one", "seed=0"]))
        while jobs := list(iter(search.next, None)):
            for job in order(jobs):
                weight = job.scenario.task["preference"][0]
                search.take(job, Solved(np.array([weight, np.sqrt(1 - weight)]), np.zeros(1, np.float32), 0.0))
        return [(each.iteration, each.preference.tolist(), each.generating) for each in search.candidates]

    assert searched(list) == searched(reversed)
    assert len(searched(list)) == 12


# Interruption


def begun(*options):
    return subprocess.Popen(
        [forked.executable(), "-m", "p2pfl.sim", "pareto", "study.toml", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_resumed_search_finds_the_same_front(capsys, whole):
    process = begun("--workers", "2", "--out", "here")
    for _ in range(5):
        assert "iteration" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "of 48 candidates are finished; continue with: p2pfl-sim pareto --resume here\n" in err
    assert len(list(Path("here/candidates").glob("[0-9]*"))) >= 15
    assert not Path("here/summary.json").exists()
    code, _, _ = pareto(capsys, "--resume", "here", "--workers", "1", "--no-report")
    assert code == 0
    assert front_files("here") == front_files(whole)
    assert without_times(summary_of("here")) == without_times(summary_of(whole))
    assert not Path("here/candidates").exists()


def some_kept(folder, count=4, changes=("form=one", "seed=0")):
    """Leave a search as if interrupted after `count` candidates."""

    class StopError(Exception): ...

    file = load("study.toml", changes)
    kept = Candidates(Path(folder), file)

    def step(_):
        if kept.done >= count:
            raise StopError

    with pytest.raises(StopError):
        search_all(begin(file), file.folder, kept, workers=1, progress=step)
    kept.give_up()


@pytest.mark.slow
def test_resumed_search_retrains_only_damaged_candidates(capsys):
    for folder in ("there", "here"):
        some_kept(folder)
    whole = {path.name: path.read_bytes() for path in Path("here/candidates").glob("[0-9]*")}
    assert sorted(whole) == ["0", "1", "2", "3"]
    Path("here/candidates/1").write_bytes(whole["1"][:-1] + b"?")
    Path("here/candidates/3").write_bytes(b"nothing of ours")
    _, printed, _ = pareto(capsys, "--resume", "there", "--workers", "1", "--no-report")
    assert "note:" not in printed
    code, out, _ = pareto(capsys, "--resume", "here", "--workers", "1", "--no-report")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("note")] == [
        "note: candidate 1 (cold, seed 0); candidate 3 (cold, seed 0) were trained again: its file of partial results is"
        " damaged"
    ]
    assert front_files("here") == front_files("there")


@pytest.mark.slow
def test_resumed_search_retrains_after_scenario_change(capsys):
    some_kept("here")
    text = Path("here/scenario.toml").read_text()
    Path("here/scenario.toml").write_text(text.replace("steps = 300", "steps = 200"))
    code, out, _ = pareto(capsys, "--resume", "here", "--workers", "1", "--no-report")
    assert code == 0
    assert "candidate 3 (cold, seed 0) were trained again: task.steps 300 -> 200\n" in out


@pytest.mark.slow
def test_resumed_search_reuses_kept_candidates(capsys, monkeypatch):
    some_kept("here", 4)
    solved = []
    monkeypatch.setattr("p2pfl.sim.pareto.solve", lambda job, progress: (solved.append(job.number), solve(job, progress))[1])
    assert pareto(capsys, "--resume", "here", "--workers", "1", "--no-report")[0] == 0
    assert solved == list(range(4, 12))


@pytest.mark.slow
def test_search_and_run_do_not_resume_each_other(capsys):
    some_kept("here")
    assert main(["run", "--resume", "here"]) == 2
    assert capsys.readouterr().err == "here was written by p2pfl-sim pareto; continue with p2pfl-sim pareto --resume here\n"
    Path("there/parts").mkdir(parents=True)
    Path("there/scenario.toml").write_text(STUDY)
    assert (
        pareto(capsys, "--resume", "there")[2]
        == "there was written by p2pfl-sim run; continue with p2pfl-sim run --resume there\n"
    )
    code, _, err = pareto(capsys, "study.toml", "--out", "here")
    assert (code, err) == (
        2,
        "here holds an unfinished search; continue it with --resume here, or name another folder with --out\n",
    )
    assert main(["report", "here"]) == 2
    assert capsys.readouterr().err == "the search in here is not finished; continue with p2pfl-sim pareto --resume here\n"


# The report


@pytest.mark.slow
def test_pareto_report_shows_fronts_and_hypervolumes(whole):
    page = (whole / "report.html").read_text()
    assert '<th scope="col">hypervolume</th>' in page
    assert "seconds per seed" in page
    assert "paper, hypervolume" in page
    if CHROMIUM is None:
        return
    with browser() as chromium:
        seen = opened_report(chromium, whole / "report.html")
    assert seen.problems == []
    assert [figure["id"] for figure in seen.figures] == ["fronts", "hypervolume"]
    assert all(figure["drawn"] and not figure["empty"] for figure in seen.figures)


@pytest.mark.slow
def test_report_does_not_compare_search_with_run(capsys, whole):
    main(["run", "study.toml", "--set", "form=one", "--engine", "local", "--out", "run", "--no-report"])
    assert "note: single trainings with the preference of the task; p2pfl-sim pareto study" in capsys.readouterr().out
    assert main(["report", "run", str(whole)]) == 2
    assert "cannot be compared with runs" in capsys.readouterr().err


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["search.step=2.0"], "command line: search.step must be more than 0 and at most 1, got 2.0\n"),
        (["search.stepp=2.0"], "command line: unknown key 'search.stepp'; did you mean 'search.step'?\n"),
        (["search=3"], "command line: search must be a table such as { iterations = 20 }, got 3\n"),
        (
            ["task.name=digits"],
            "run 'cold': a search needs a task with several objectives, such as deep-sea-treasure, but digits has one\n",
        ),
        (
            ["policy.name=local"],
            "run 'local', seed 0: the nodes ended with different models; a search needs a policy that gives all nodes"
            " the same model, such as fedavg on a complete topology\n",
        ),
    ],
)
def test_invalid_search_reports_one_line(capsys, changes, words):
    options = [text for change in ("form=one", *changes) for text in ("--set", change)]
    code, out, err = pareto(capsys, "study.toml", *options, "--workers", "1", "--out", "here")
    assert (code, out) == (2, "")
    assert err == words
    assert not Path("here").exists()


def test_pareto_of_scenario_without_search_is_refused(capsys):
    code, _, err = pareto(capsys, "digits-gossip")
    assert code == 2
    assert err == "run 'local' has no [search] table; use p2pfl-sim run instead\n"


def test_search_table_of_run_extends_common_table():
    file = resolve({"search": {"samples": 7}, "run": [{"name": "a", "search": {"step": 0.5}}, {"name": "b"}]}, [], "s", ".")
    a, b = (row.search for row in file.runs)
    assert (a.samples, a.step) == (7, 0.5)
    assert (b.samples, b.step) == (7, Search().step)


# Other environments


@pytest.mark.slow
@pytest.mark.parametrize("name", spread(["mofld-minecart", "mofld-lander"], 2))
def test_search_in_other_environments_completes(name, capsys):
    pytest.importorskip("mo_gymnasium", reason="needs the extra morl")
    options = ["--set", "form=smoke", "--set", "search.samples=1", "--workers", "1", "--out", "here", "--no-report"]
    code, out, _ = pareto(capsys, name, *options)
    assert code == 0
    summary = summary_of("here")
    assert all(np.isfinite(run["objectives"]["nodes"]).all() and run["front"] for run in summary["runs"])
    assert "federated" in out
