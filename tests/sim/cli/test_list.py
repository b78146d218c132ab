"""`p2pfl-sim list`: the table of shipped scenarios, and the details of one scenario."""

import json

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.sim import reproduction
from p2pfl.sim.cli import scenario_list
from p2pfl.sim.cli.main import main
from p2pfl.sim.scenario.scenario import load, resolve, shipped_scenarios

IMAGES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
DATA = IMAGES | {"qmnist": "QMNIST", "adult": "Adult", "bank": "Bank", "compas": "COMPAS"}


def listing(capsys, *arguments):
    code = main(["list", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def files():
    return {name: load(name) for name in shipped_scenarios()}


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "width"), [(80, 80), (100, 100), (200, 100)])
def test_table_fits_the_terminal(capsys, monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = listing(capsys)
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split() == list(scenario_list.HEADS)
    assert [line.split()[0] for line in lines[1:] if line[:1].strip()][: len(shipped_scenarios())] == [*shipped_scenarios()]


def test_table_has_all_cells_of_a_scenario():
    lines = scenario_list.table([load("dac-fmnist-covariate")], 100)
    assert lines == [
        "scenario              shows                               paper                 needs           time",
        "dac-fmnist-covariate  DAC on Fashion-MNIST with rotated   Listo Zec et al.,     Fashion-MNIST   30 h",
        "                      images                              tables 2 and 5",
    ]


def test_table_takes_a_scenario_without_texts():
    file = resolve({"nodes": 2}, [], name="mine", folder=".")
    assert scenario_list.table([file], 80)[1].split() == ["mine", "-", "-", "-"]


@pytest.mark.slow
def test_json_of_all_scenarios_has_their_texts(capsys):
    listed = json.loads(listing(capsys, "--json")[1])
    assert list(listed) == list(shipped_scenarios())
    assert listed["dac-synthetic"]["runs"] == 14
    assert listed["dac-synthetic"]["paper"] == "Listo Zec et al."
    assert listed["fairness-adult"]["needs"] == "Adult"


def test_details_of_a_scenario(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = listing(capsys, "praffl-bank")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert lines[0] == "praffl-bank: PraFFL on Bank: one model for every preference"
    assert "paper:   Ye et al., 2025, table 2" in lines
    assert "needs:   Bank" in lines
    assert "command: p2pfl-sim run praffl-bank" in lines
    assert "differences from the paper:" in lines
    assert "full   13    3      1 to 10  0 to 2  -" in lines
    assert "  praffl                0.889" in lines
    assert "  - local praffl, praffl, praffl gossip above fedavg" in lines


def test_details_of_a_search_name_its_command(capsys):
    out = listing(capsys, "mofld-dst")[1]
    assert "command: p2pfl-sim pareto mofld-dst\n" in out
    assert "10 to 50, for each of 100 candidates" in out


def test_details_as_json(capsys):
    found = json.loads(listing(capsys, "topology-study", "--json")[1])
    assert found["forms"]["short"] == {
        "runs": 35, "nodes": [40, 40], "rounds": [40, 40], "seeds": [0], "duration": 45
    }  # fmt: skip
    assert found["rows"][0] == {"name": "complete, budget.models=1", "paper": None}
    assert len(found["claims"]) == 4


def test_details_of_a_file_without_texts(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'nodes = 3\nseeds = [4, 7]\n[forms.long]\nrounds = 20\nduration = 7200\npolicy = { name = "mine:Heed" }\n'
    )
    code, out, _ = listing(capsys, str(path))
    assert code == 0
    assert out.startswith("mine\n\npaper:   -\nneeds:   nothing\n")
    assert "full  1     3      10      4, 7   -\nlong  1     3      20      4, 7   2 h\n" in " ".join(out.split(" "))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("dac-synth", "unknown scenario 'dac-synth'; did you mean 'dac-synthetic' or 'dac-synthetic-default'?"),
        ("x", "unknown scenario 'x'; `p2pfl-sim list` prints all names, and a file must end in .toml"),
        ("none.toml", "the scenario file none.toml does not exist"),
    ],
)
def test_wrong_name_is_one_clear_line(capsys, name, problem):
    assert listing(capsys, name) == (2, "", problem + "\n")


@pytest.mark.slow
def test_every_shipped_scenario_has_a_title_and_a_description(files):
    for name, file in files.items():
        assert 3 <= len(file.title.split()) <= 12, name
        assert f"{file.question}\n{file.description}".count("\n") >= 2, name
        assert bool(file.table) == bool(file.source), name


@pytest.mark.slow
def test_needs_name_the_data_sets_and_extras(files):
    for name, file in files.items():
        tasks = [run.task for run in file.runs]
        sets = [
            each
            for task in tasks
            for each in ([task["data"]] if isinstance(task.get("data"), str) else task.get("data", []))
        ]
        named = {DATA[each] for each in sets if each in DATA} | (
            {"morl"} if "morl" in {task["name"] for task in tasks} else set()
        )
        assert [word for word in named if word not in file.needs] == [], name
        assert bool(file.needs) == bool(named), name


@pytest.mark.slow
def test_durations_agree_with_the_recorded_ones():
    for name, forms in reproduction.load_measured(reproduction.FILE).items():
        for form, told in forms.items():
            file = load(name, [f"form={form}"])
            if told.seconds is not None and told.cores == 2:
                expected = told.seconds * len(file.seeds) / len(told.seeds)
                assert file.duration is not None, name
                assert 0.5 <= file.duration / expected <= 2, (name, form)


def test_duration_belongs_to_one_form():
    raw = {"duration": 60, "forms": {"short": {"duration": 6.5}, "smoke": {}}}
    found = [resolve(raw, [f"form={form}"], "study", ".").duration for form in ("full", "short", "smoke")]
    assert found == [60, 6.5, None]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"duration": "long"}, "study: duration must be a number, got 'long'"),
        ({"duration": 0}, "study: duration must be a positive number of seconds, got 0"),
        ({"title": 3}, "study: title must be a string, got 3"),
        ({"needs": ["data"]}, "study: needs must be a string, got ['data']"),
        ({"differences": "many"}, "study: differences must be a list of strings, got 'many'"),
    ],
)
def test_wrong_text_of_a_scenario_is_an_error(raw, problem):
    with pytest.raises(ConfigurationError) as error:
        resolve(raw, [], "study", ".")
    assert str(error.value) == problem


def test_resolved_scenario_keeps_its_texts():
    raw = {"title": "Two nodes", "needs": "MNIST", "differences": ["Fewer nodes."], "duration": 9}
    again = resolve(resolve(raw, [], "study", ".").to_toml(), [], "study", ".")
    assert (again.title, again.needs, again.differences, again.duration) == ("Two nodes", "MNIST", ("Fewer nodes.",), None)
