"""Completion of commands in a shell."""

import shutil
import subprocess
import sys

import pytest

from p2pfl.node.cli.main import main as node
from p2pfl.sim.cli.main import main as sim

COMPLETE = """
source ./script
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_{program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def complete(tmp_path, monkeypatch, capsys):
    """Return a function that returns what bash offers for the last word of a command line."""
    monkeypatch.chdir(tmp_path)

    def offers(line):
        main = node if line.startswith("p2pfl-node") else sim
        assert main(["completion", "bash"]) == 0
        (tmp_path / "script").write_text(capsys.readouterr().out)
        text = COMPLETE.format(words=line, program=line.split()[0].replace("-", "_"))
        found = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
        return set(found.stdout.split())

    return offers


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs bash")
def test_bash_completes_commands_options_and_folders(complete, tmp_path):
    (tmp_path / "alice").mkdir()
    (tmp_path / "al.token").touch()
    assert complete("p2pfl-node re") == {"request", "revoke"}
    assert complete("p2pfl-node federation cr") == {"create"}
    assert complete("p2pfl-node run alice --status-") == {"--status-port", "--status-host"}
    assert complete("p2pfl-node init alice --policy fedp") == {"fedprox", "fedpref"}
    assert complete("p2pfl-node run al") == {"alice"}
    assert complete("p2pfl-node join alice al") == {"alice", "al.token"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs bash")
def test_bash_completes_shipped_scenarios_and_files(complete, tmp_path):
    (tmp_path / "digits-mine.toml").touch()
    assert {"digits-gossip", "digits-mine.toml"} <= complete("p2pfl-sim run digits-")


@pytest.mark.parametrize(("shell", "start"), [("zsh", "#compdef p2pfl-sim"), ("fish", "complete -c p2pfl-sim")])
def test_completion_supports_other_shells(capsys, shell, start):
    assert sim(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert start in out
    assert "digits-gossip" in out


@pytest.mark.slow
@pytest.mark.parametrize("program", [node, sim])
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_script_is_valid_in_other_shells(capsys, tmp_path, shell, program):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert program(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_and_files(capsys, tmp_path):
    assert node(["completion", "fish"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "alice").mkdir()
    lines = "; ".join(
        f"complete -C 'p2pfl-node {words}'" for words in ("federation cr", "run al", "init alice --policy fedp")
    )
    found = subprocess.run(
        ["fish", "-c", f"source script; {lines}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in found.stdout.splitlines()] == ["create", "alice/", "fedprox", "fedpref"]


def test_completion_without_shtab_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert node(["completion", "bash"]) == 2
    assert capsys.readouterr().err == "completion needs shtab: pip install 'p2pfl-node[completion]'\n"
