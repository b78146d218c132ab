"""Names of factories and modules in scenarios: imports, and refusals before a run."""

import sys
from importlib.metadata import EntryPoint

import pytest

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.policies import make_policy
from p2pfl.policies.random import Random
from p2pfl.sim.cli import main as cli
from p2pfl.sim.scenario import names
from p2pfl.sim.scenario.scenario import load
from p2pfl.task import Part, make_task
from tests.support.extras import needs_torch

MODULE = """
from functools import lru_cache, partial
import subprocess
from pathlib import Path

from p2pfl.policies.random import Random

Path("{trace}").touch()
few = partial(Random, neighbours=1)
kept = lru_cache(Random)

class Half:
    def __init__(self):
        Path("{trace}.made").touch()

    def round(self, me, peers): ...
"""
SCENARIO = 'nodes = 3\nrounds = 1\ntask = {{ name = "concept-shift" }}\npolicy = {policy}\n'


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A folder with a module that leaves a trace when it is imported; the current folder is another one."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "authored.py").write_text(MODULE.format(trace=home / "imported"))
    current = tmp_path / "current"
    current.mkdir()
    monkeypatch.chdir(current)
    monkeypatch.delitem(sys.modules, "authored", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return home


def scenario(folder, policy):
    path = folder / "shared.toml"
    path.write_text(SCENARIO.format(policy=policy))
    return str(path)


def sim(capsys, *arguments):
    code = cli.main([*arguments])
    out, err = capsys.readouterr()
    return code, out, err


# Checks before a call


@needs_torch
@pytest.mark.parametrize("trust", [(), ("--trust",)])
def test_scenario_that_names_a_command_does_not_run_it(capsys, tmp_path, study, trust):
    file = scenario(study, f'{{ name = "subprocess:run", args = ["touch", "{tmp_path / "ran"}"] }}')
    code, out, err = sim(capsys, "run", file, "--engine", "local", *trust)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "subprocess is a module of Python's standard library" in err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("subprocess:run", "subprocess is a module of Python's standard library"),
        ("builtins:exec", "builtins is a module of Python's standard library"),
        ("p2pfl.data.binary_files:zipfile.ZipFile", "it belongs to zipfile in Python's standard library"),
        ("authored:subprocess.run", "it belongs to subprocess in Python's standard library"),
        ("authored:few", "neither a class nor a function"),
        ("authored:Half", "it lacks prepare, state, restore"),
    ],
)
def test_make_policy_refuses_object_that_is_no_policy(study, monkeypatch, name, reason):
    monkeypatch.syspath_prepend(study)
    with pytest.raises(ConfigurationError, match=reason):
        make_policy(name, {})
    assert not (study / "imported.made").exists()


def test_make_task_refuses_standard_library():
    with pytest.raises(ConfigurationError, match="os is a module of Python's standard library"):
        make_task("os:system", {"command": "true"}, Part(0, 1), 0)


def test_make_policy_accepts_wrapped_class(study, monkeypatch):
    monkeypatch.syspath_prepend(study)
    assert isinstance(make_policy("authored:kept", {}), Random)


# Permitted imports


@pytest.mark.slow
def test_module_in_the_scenario_folder_is_imported(study):
    file = load(scenario(study, '{ name = "authored:Random" }'))
    assert file.path == (str(study),)
    (run,) = p2pfl.simulate(scenario(study, '{ name = "authored:Random" }'))
    assert run.summary["traffic"]["models"] > 0
    assert (study / "imported").exists()


@pytest.mark.slow
@needs_torch
def test_scenario_without_modules_leaves_path_unchanged(study):
    assert load(scenario(study, '{ name = "random" }')).path == ()
    before = [*sys.path]
    assert cli.main(["run", scenario(study, '{ name = "local" }'), "--engine", "local", "--no-report", "--json"]) == 0
    assert sys.path == before


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("place", ["current", "elsewhere"])
def test_module_outside_the_scenario_folder_needs_trust(capsys, monkeypatch, study, tmp_path, place):
    (tmp_path / place).mkdir(exist_ok=True)
    (study / "authored.py").rename(tmp_path / place / "authored.py")
    monkeypatch.syspath_prepend(tmp_path / place)
    file = scenario(study, '{ name = "authored:Random" }')
    code, out, err = sim(capsys, "run", file, "--engine", "local", "--no-report", "--json")
    assert (code, out) == (2, "")
    assert err == (
        f"shared: the policy 'authored:Random' needs the module authored, which is not in the scenario's folder {study}"
        f" but in {tmp_path / place / 'authored.py'}; if you trust its code, add --trust"
        " (in Python: trust=True)\n"
    )
    assert not (study / "imported").exists()
    assert sim(capsys, "run", file, "--engine", "local", "--no-report", "--json", "--trust")[0] == 0
    assert (study / "imported").exists()
    with pytest.raises(ConfigurationError, match="needs the module authored"):
        p2pfl.simulate(file)
    assert p2pfl.simulate(file, trust=True)


def test_module_that_exists_nowhere_is_to_be_put_into_the_folder(study):
    with pytest.raises(ConfigurationError, match=r"scenario's folder .*; put it there, or add --trust"):
        load(scenario(study, '{ name = "nowhere_at_all:Random" }'))


def test_module_in_named_folder_elsewhere_needs_trust(study, tmp_path):
    away = tmp_path / "away"
    away.mkdir()
    file = away / "shared.toml"
    file.write_text(f'modules = "{study}"\n' + SCENARIO.format(policy='{ name = "authored:Random" }'))
    with pytest.raises(ConfigurationError, match="needs the module authored"):
        load(str(file))
    assert load(str(file), trust=True).path[0] == str(study)
    (study / "authored.py").rename(away / "authored.py")  # as for recipients of both files
    assert load(str(file)).path == (str(away),)


def test_module_below_the_scenario_folder_is_imported(study):
    (study / "code").mkdir()
    (study / "authored.py").rename(study / "code" / "authored.py")
    file = study / "shared.toml"
    file.write_text('modules = "code"\n' + SCENARIO.format(policy='{ name = "authored:Random" }'))
    assert load(str(file)).path == (str(study / "code"),)


def test_module_of_the_folder_never_hides_installed_module(study):
    (study / "numpy.py").write_text("raise AssertionError")
    with pytest.raises(ConfigurationError, match="needs the module numpy, which is not in the scenario's folder"):
        load(scenario(study, '{ name = "numpy:load" }'))
    (study / "statistics.py").write_text("raise AssertionError")
    with pytest.raises(ConfigurationError, match="statistics is a module of Python's standard library"):
        load(scenario(study, '{ name = "statistics:mean" }'))


@pytest.mark.parametrize("name", ["__main__:main", "p2pfl.node.cli.main:main", "authored:main"])
def test_module_not_in_the_scenario_folder_needs_trust(tmp_path, name):
    with pytest.raises(ConfigurationError, match="needs the module"):
        load(scenario(tmp_path, f'{{ name = "{name}" }}'))


def test_registered_entry_point_needs_no_trust(monkeypatch, tmp_path):
    point = EntryPoint("heed", "installed_heed:Heed", "p2pfl.policies")
    monkeypatch.setattr(names, "entry_points", lambda group: [point] if group == point.group else [])
    load(scenario(tmp_path, '{ name = "installed_heed:Heed" }'))
    for policy in ('{ name = "installed_heed:main" }', '{ name = "p2pfl.tasks.morl:MorlTask" }'):
        with pytest.raises(ConfigurationError, match="needs the module"):
            load(scenario(tmp_path, policy))


@pytest.mark.slow
def test_name_on_the_command_line_needs_no_trust(capsys, study, tmp_path):
    (study / "authored.py").rename(tmp_path / "current" / "authored.py")
    file = scenario(study, '{ name = "local" }')
    rest = ("--engine", "local", "--no-report", "--json")
    assert sim(capsys, "run", file, "--set", "policy.name=authored:Random", *rest)[2] == ""
    vary = ("sweep", file, "--vary", "policy.name=random,authored:kept", "--dry-run", "--out", "swept")
    assert sim(capsys, *vary)[2] == ""


@pytest.mark.slow
def test_simulate_trusts_names_in_a_dict(study, monkeypatch):
    monkeypatch.chdir(study)
    tables = {"nodes": 2, "rounds": 1, "task": {"name": "concept-shift"}, "policy": {"name": "authored:Random"}}
    assert p2pfl.simulate(tables)


@pytest.mark.slow
def test_scenario_of_results_needs_trust_again(capsys, study, tmp_path):
    rest = ("--engine", "local", "--no-report", "--json")
    out = tmp_path / "results"
    assert sim(capsys, "run", scenario(study, '{ name = "authored:Random" }'), "--out", str(out), *rest)[0] == 0
    again = ("run", str(out / "scenario.toml"), *rest, "--out")
    code, _, err = sim(capsys, *again, str(tmp_path / "again"))
    assert code == 2
    assert "add --trust" in err
    assert not (tmp_path / "again").exists()
    assert sim(capsys, *again, str(tmp_path / "again"), "--trust")[0] == 0


def test_data_check_applies_the_same_trust_rule(capsys, study):
    (study / "shared.toml").write_text('nodes = 2\nrounds = 1\ntask = { name = "yaml:load", s = "1" }\n')
    code, _, err = sim(capsys, "data", "check", str(study / "shared.toml"))
    assert (code, "needs the module yaml" in err) == (2, True)
