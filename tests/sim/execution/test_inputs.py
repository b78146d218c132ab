"""Inputs of runs: a result is kept while their content stays, and computed again, with their names, after a change."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import threadpoolctl
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

import p2pfl
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.sim.cli import main as cli
from p2pfl.sim.execution import inputs
from p2pfl.sim.execution.cluster_worker import WorkerSettings
from p2pfl.sim.execution.inputs import Content, RunInputs
from p2pfl.sim.execution.probe import probe
from p2pfl.sim.execution.resume import Parts
from p2pfl.sim.scenario.scenario import jobs_of, load, resolve
from p2pfl.sim.simulation.sharding import task_of

STOPPING = """
from pathlib import Path
from p2pfl.policies.local import Local

class Stopped(Local):
    async def round(self, me, peers):
        if Path("stop").exists():
            raise KeyboardInterrupt
        return await super().round(me, peers)
"""
MINE = """
import helper
from p2pfl.tasks.concept_shift import concept_shift

def task(part, seed, *, data="", more=()):
    return concept_shift(part, seed, samples=helper.SAMPLES)
"""
SCENARIO = """
nodes = 2
rounds = 1
deadline = inf
[[run]]
name = "uses"
policy = {{ name = "local" }}
{run}
[[run]]
name = "other"
task = {{ name = "concept-shift" }}
policy = {{ name = "local" }}
[[run]]
name = "last"
task = {{ name = "concept-shift" }}
policy = {{ name = "stopping:Stopped" }}
"""
SCHEMA = """
train = "t.csv"
negative = ["0"]
positive = ["1"]
sensitive = ["g"]
[columns]
x = "numeric"
g = "categorical"
y = "label"
"""
CSV = 'task = { name = "classification", data = "d.csv", partition = { name = "iid" } }'
NPZ = 'task = { name = "classification", data = "d.npz", partition = { name = "iid" } }'
FAIR = 'task = { name = "fairness", data = "s.toml" }'
IMAGES = 'task = { name = "images", data = "mine", root = "sets", model = { name = "linear" } }'
WEIGHTS = IMAGES.replace(' }"', " }").replace('root = "sets"', 'root = "sets", initial = "w.safetensors"')
OWN = 'task = { name = "mine:task", data = "pictures", more = ["d.csv"] }'


def csv(seed):
    rng = np.random.default_rng(seed)
    rows = [f"{value:.3f},{k % 2}" for k, value in enumerate(rng.normal(size=60))]
    Path("d.csv").write_text("\n".join(["a,label", *rows]) + "\n")


def npz(seed):
    np.savez("d.npz", x=np.random.default_rng(seed).normal(size=(60, 2)), y=np.arange(60) % 2)


def table(seed):
    rows = [f"{value:.3f},{'ab'[k % 3 == 0]},{k % 2}" for k, value in enumerate(np.random.default_rng(seed).normal(size=60))]
    Path("t.csv").write_text("\n".join(["x,g,y", *rows]) + "\n")


def idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(head + array.tobytes())


def places(latitude):
    graph = nx.path_graph(2)
    nx.set_node_attributes(graph, {0: {"latitude": latitude, "longitude": 0.0}, 1: {"latitude": 0.0, "longitude": 9.0}})
    nx.write_graphml(graph, "places.graphml")


def pictures(seed):
    folder, rng = Path("sets/mine"), np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        idx(folder / f"{part}-images-idx3-ubyte", rng.integers(0, 255, (40, 4, 4), np.uint8))
        idx(folder / f"{part}-labels-idx1-ubyte", (np.arange(40) % 2).astype(np.uint8))


@pytest.fixture(autouse=True)
def study(tmp_path, monkeypatch):
    """Make a folder with an input of each kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("stopping", "mine", "helper"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    Path("stopping.py").write_text(STOPPING)
    Path("mine.py").write_text(MINE)
    Path("helper.py").write_text("SAMPLES = 20\n")
    csv(0)
    npz(0)
    table(0)
    pictures(0)
    Path("s.toml").write_text(SCHEMA)
    Path("pictures/cat").mkdir(parents=True)
    Path("pictures/cat/1.png").write_bytes(b"a")
    nx.write_graphml(nx.path_graph(2), "g.graphml")
    places(1.0)
    images = resolve(
        {"nodes": 2, "task": {"name": "images", "data": "mine", "root": "sets", "model": {"name": "linear"}}}, [], "s", "."
    )
    task = task_of(images.runs[0], 0)
    save_file({name: np.array(value) for name, value in task.layout.unflatten(task.initial(0)).items()}, "w.safetensors")


def sim(capsys, *arguments):
    code = cli.main(["run", *arguments, "--engine", "local", "--no-report"])
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), err


def stopped(capsys, run):
    Path("s").mkdir(exist_ok=True)
    Path("study.toml").write_text(SCENARIO.format(run=run))
    Path("stop").touch()
    assert sim(capsys, "study.toml", "--out", "here")[0] == 130
    Path("stop").unlink()
    assert Path("here/parts/1").exists()


def resumed(capsys, *options):
    """Resume, and return the runs that were computed, and the output."""
    code, out, err = sim(capsys, "--resume", "here", "--trust", *options)
    assert code == 0, err
    out = re.sub(r"note: the node with the fewest has only .*? by [\d.]+ ", "", out)  # the tables of these tests are short
    return [line.partition(",")[0] for line in err.splitlines() if ", seed" in line], out


def write(path, data):
    return lambda: Path(path).write_bytes(data)


def weights():
    save_file({name: value + 1 for name, value in load_file("w.safetensors").items()}, "w.safetensors")


CHANGES = [
    (CSV, lambda: csv(1), "task.data d.csv has changed"),
    (NPZ, lambda: npz(1), "task.data d.npz has changed"),
    (FAIR, lambda: Path("s.toml").write_text(SCHEMA + "# a comment\n"), "task.data s.toml has changed"),
    (FAIR, lambda: table(1), "task t.csv has changed"),
    (IMAGES, lambda: pictures(1), "task mine has changed"),
    (IMAGES, write("sets/mine/more-of-it", b""), "task mine has changed"),
    (WEIGHTS, weights, "task.initial w.safetensors has changed"),
    ('topology = { file = "g.graphml" }', lambda: nx.write_graphml(nx.path_graph(2), "g.graphml", prettyprint=False),
     "topology g.graphml has changed"),
    ('network = { latency = "geography", places = "places.graphml" }', lambda: places(2.0),
     "network.places places.graphml has changed"),
    (OWN, lambda: Path("mine.py").write_text(MINE + "X = 1\n"), "module mine.py has changed"),
    (OWN, lambda: Path("helper.py").write_text("SAMPLES = 30\n"), "module helper.py has changed"),
    (OWN, lambda: csv(1), "task.more d.csv has changed"),
    (OWN, write("pictures/cat/1.png", b"b"), "task.data pictures has changed"),
    (OWN, write("pictures/cat/2.png", b"b"), "task.data pictures has changed"),
    (OWN, lambda: Path("pictures/cat/1.png").rename("pictures/cat/3.png"), "task.data pictures has changed"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("run", "change", "named"), CHANGES, ids=range(len(CHANGES)))
def test_changed_input_is_named_and_its_run_computed_again(capsys, run, change, named):
    stopped(capsys, run)
    change()
    computed, out = resumed(capsys)
    assert computed == ["uses", "last"]
    assert out.count("note:") == 1
    assert f"note: uses, seed 0 was computed again: {named} results: here" in out
    sim(capsys, "study.toml", "--out", "whole")
    whole, here = (json.loads(Path(folder, "summary.json").read_text())["runs"] for folder in ("whole", "here"))
    assert [run["trace"] for run in here] == [run["trace"] for run in whole]
    assert [run.get("inputs") for run in here] == [run.get("inputs") for run in whole]


@pytest.mark.slow
@pytest.mark.parametrize("run", [CSV, NPZ, FAIR, IMAGES, WEIGHTS, 'topology = { file = "g.graphml" }', OWN])
def test_nothing_is_computed_again_when_nothing_has_changed(capsys, run, tmp_path, monkeypatch):
    stopped(capsys, run)
    for path in tmp_path.rglob("*"):
        if "here" not in path.parts:
            os.utime(path, (1, 1))
    shutil.copy("d.csv", "copy.csv")
    Path("copy.csv").replace("d.csv")
    computed, out = resumed(capsys)
    assert (out.partition("note:")[2], computed) == ("", ["last"])


@pytest.mark.slow
@pytest.mark.parametrize("run", [CSV, FAIR, OWN])
def test_moved_folder_keeps_results(capsys, run, tmp_path, monkeypatch):
    stopped(capsys, run)
    for path in [path for path in tmp_path.iterdir() if path.name != "moved"]:
        (tmp_path / "moved").mkdir(exist_ok=True)
        path.rename(tmp_path / "moved" / path.name)
    monkeypatch.chdir(tmp_path / "moved")
    computed, out = resumed(capsys)
    assert (out.partition("note:")[2], computed) == ("", ["last"])


@pytest.mark.slow
def test_other_version_of_a_library_is_named_or_accepted(capsys, monkeypatch):
    stopped(capsys, CSV)
    shutil.copytree("here", "kept")
    version = inputs.version
    monkeypatch.setattr(inputs, "version", lambda name: "9.9" if name == "numpy" else version(name))
    computed, out = resumed(capsys)
    assert computed == ["uses", "other", "last"]
    assert f"uses, seed 0; other, seed 0 were computed again: numpy {np.__version__} -> 9.9" in out
    shutil.rmtree("here")
    Path("kept").rename("here")
    computed, out = resumed(capsys, "--allow-different-bits")
    assert (computed, "computed again" in out) == (["last"], False)


@pytest.mark.slow
def test_other_number_of_threads_is_named(capsys, monkeypatch):
    stopped(capsys, CSV)
    before = blas_threads()  # libraries may differ, because an earlier test has limited those that were loaded by then
    more = before[-1] + 1
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: [{"user_api": "blas", "num_threads": more}])
    assert f"were computed again: BLAS threads {', '.join(map(str, before))} -> {more}" in resumed(capsys)[1]


def blas_threads():
    return sorted({pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"})


@pytest.mark.slow
def test_result_of_an_earlier_version_is_computed_again(capsys):
    stopped(capsys, CSV)
    part = Path("here/parts/0")
    part.write_bytes(part.read_bytes().replace(b"part 3\n", b"part 2\n", 1))
    computed, out = resumed(capsys)
    assert computed == ["uses", "last"]
    assert "uses, seed 0 was computed again: its file of partial results is of another version of p2pfl" in out


@pytest.mark.slow
def test_input_that_changes_during_the_command_ends_it(capsys):
    Path("study.toml").write_text(SCENARIO.format(run=OWN))
    changing = "from pathlib import Path\n" + MINE.replace(
        "    return", "    path = Path(more[0])\n    path.write_bytes(path.read_bytes() + b'1')\n    return"
    )
    Path("mine.py").write_text(changing)
    code, out, err = sim(capsys, "study.toml", "--out", "here")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == (
        "run 'uses', seed 0: task.more d.csv has changed while this command ran, so the result of the run was not kept"
    )
    assert not Path("here").exists()


@pytest.mark.slow
def test_folder_that_a_run_writes_does_not_end_it(capsys):
    Path("study.toml").write_text(SCENARIO.format(run=OWN.replace('"pictures"', '"."').replace(', more = ["d.csv"]', "")))
    assert sim(capsys, "study.toml", "--out", "here")[0] == 0


@pytest.mark.slow
def test_folder_that_a_task_fills_when_it_is_made_is_no_change(capsys):
    writing = "    path = Path(data) / 'prepared.npy'\n    path.write_bytes(b'')\n    return"
    Path("mine.py").write_text("from pathlib import Path\n" + MINE.replace("    return", writing))
    stopped(capsys, OWN)
    computed, out = resumed(capsys)
    assert (out.partition("note:")[2], computed) == ("", ["last"])


@pytest.mark.slow
def test_module_elsewhere_on_the_path_counts(capsys, tmp_path, monkeypatch):
    library = tmp_path / "library"
    (library / "nets").mkdir(parents=True)
    (library / "nets" / "__init__.py").write_text("from nets.sizes import SAMPLES\n")
    (library / "nets" / "sizes.py").write_text("SAMPLES = 20\n")
    monkeypatch.syspath_prepend(library)
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    Path("helper.py").write_text("from nets import SAMPLES\n")
    stopped(capsys, OWN)
    (library / "nets" / "sizes.py").write_text("SAMPLES = 30\n")
    computed, out = resumed(capsys)
    assert computed == ["uses", "last"]
    assert "uses, seed 0 was computed again: module nets/sizes.py has changed" in out


@pytest.mark.slow
def test_resume_of_a_finished_run_names_changed_inputs(capsys):
    Path("study.toml").write_text(SCENARIO.format(run=CSV))
    assert sim(capsys, "study.toml", "--out", "here")[0] == 0
    finished = "here holds a finished run; there is nothing to resume"
    assert sim(capsys, "--resume", "here", "--trust")[2] == f"{finished}\n"
    csv(1)
    assert sim(capsys, "--resume", "here", "--trust")[2] == (
        f"{finished}, but since then task.data d.csv has changed; run the scenario again into another folder\n"
    )


def of(text, **more):
    """Return the runs of a scenario with a task of one's own."""
    return resolve({"nodes": 2, "task": {"name": "mine:task", **more}, "policy": {"name": "local"}}, [], "s", ".")


def files(file):
    sys.path += file.path
    return RunInputs(file).files(file.runs[0])


def test_factory_declares_files_that_no_option_names():
    Path("mine.py").write_text(MINE + 'task.inputs = ["d.csv", "none.bin"]\n')
    found = files(of("", data="pictures"))
    assert sorted(found) == ["module helper.py", "module mine.py", "task d.csv", "task none.bin", "task.data pictures"]
    assert found["task none.bin"] == inputs.MISSING


def test_factory_declares_files_by_a_function_of_its_options():
    Path("mine.py").write_text(MINE + "task.inputs = lambda options: [f\"{options['data']}.csv\"]\n")
    assert "task d.csv" in files(of("", data="d"))


def test_declaration_of_another_form_is_refused():
    Path("mine.py").write_text(MINE + "task.inputs = 3\n")
    file = of("")
    sys.path += file.path
    found = RunInputs(file)
    with pytest.raises(ConfigurationError, match="task: the attribute `inputs` of task must be a list of paths"):
        found.files(file.runs[0])


def test_version_of_an_imported_distribution_counts():
    Path("helper.py").write_text("import networkx\nSAMPLES = 20\n")
    file = of("")
    sys.path += file.path
    assert RunInputs(file).content(file.runs[0]).versions["networkx"] == nx.__version__


def test_two_files_of_one_name_count_both(tmp_path):
    (tmp_path / "b").mkdir()
    shutil.copy("d.csv", "b/d.csv")
    found = files(of("", more=["d.csv", "b/d.csv"]))
    assert {"task.more d.csv", "task.more d.csv (2)"} <= found.keys()


@pytest.mark.slow
def test_edited_module_is_imported_again_with_a_note():
    scenario = {"nodes": 2, "rounds": 1, "task": {"name": "mine:task"}, "policy": {"name": "local"}}
    first = p2pfl.simulate(scenario, progress=False)
    before = Path("helper.py").stat()
    Path("helper.py").write_text("SAMPLES = 30\n")
    os.utime("helper.py", ns=(before.st_atime_ns, before.st_mtime_ns))  # bytecode of the old text looks current
    second = p2pfl.simulate(scenario, progress=False)
    third = p2pfl.simulate(scenario, progress=False, workers=1)
    assert first[0].summary["trace"] != second[0].summary["trace"] == third[0].summary["trace"]
    assert second[0].notes == ["helper.py changed after the import, and was imported again"]
    assert third[0].notes == first[0].notes == []


@pytest.mark.slow
@pytest.mark.parametrize(("run", "change"), [(FAIR, lambda: table(1)), (IMAGES, lambda: pictures(1)), (WEIGHTS, weights)])
def test_process_reads_changed_files_again(run, change):
    Path("study.toml").write_text(f"nodes = 2\nrounds = 1\npolicy = {{ name = 'local' }}\n{run}\n")
    first = p2pfl.simulate("study.toml", progress=False)
    again = p2pfl.simulate("study.toml", progress=False)
    change()
    other = p2pfl.simulate("study.toml", progress=False)
    assert first[0].summary["trace"] == again[0].summary["trace"] != other[0].summary["trace"]


def test_machine_with_another_copy_of_a_file_is_refused():
    Path("study.toml").write_text(f"nodes = 2\n{CSV}\n")
    file = load("study.toml")
    here = probe()
    settings = WorkerSettings(file.path, "", here, False)
    files = RunInputs(file).files(file.runs[0])
    settings.check_files(file.runs[0], files)
    csv(1)
    with pytest.raises(RunError, match=r"has other inputs than .*: task.data d.csv has changed; copy the files"):
        settings.check_files(file.runs[0], files)
    Path("d.csv").unlink()
    with pytest.raises(RunError, match=r"task\.data d\.csv is missing"):
        settings.check_files(file.runs[0], files)


def test_many_changes_are_named_in_one_line():
    before = Content({str(k): "1" for k in range(9)}, {"a": "1"}, {"numpy": "1"})
    now = Content({str(k): "2" for k in range(9)}, {"b": "1"}, {"numpy": "2"})
    assert before.changes(now) == "a is missing, b is new, 0 1 -> 2, 1 1 -> 2, 2 1 -> 2 and 7 more"
    assert before.changes(before) == ""


def test_files_are_digested_once_for_all_runs(monkeypatch):
    file = of("", data="d.csv")
    sys.path += file.path
    counted = []
    digest = inputs.digest_file
    monkeypatch.setattr(inputs, "digest_file", lambda path: counted.append(path.name) or digest(path))
    many = replace(file, seeds=tuple(range(50)))
    parts = Parts(Path("here"), many)
    assert all("task.data d.csv" in parts.inputs.files(job) for job in jobs_of(many))
    parts.give_up()
    assert counted.count("d.csv") == 1
