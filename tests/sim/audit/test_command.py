"""The command `p2pfl-sim audit`: its table, its files, resumption, and refusals."""

import json

import pytest

from p2pfl.errors import RunError
from p2pfl.sim.audit import audit
from p2pfl.sim.cli import audit as command
from p2pfl.sim.cli.main import main
from tests.support.broken_mechanisms import plant

STUDY = """
nodes = 3
rounds = 2
seeds = [5, 6]
task = { name = "digits", shared = true, samples = 16, batch_size = 8, lr = 0.2 }
policy = { name = "fedavg" }

[[run]]
name = "plain"

[[run]]
name = "budget"
privacy = { epsilon = 8 }
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)


def call(capsys, *arguments):
    code = main(["audit", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_audit_writes_a_table_a_page_and_figures(tmp_path, capsys):
    code, out, _ = call(capsys, "study.toml", "--shadows", "4", "--out", "runs/a")
    assert code == 0
    assert "AUC" in out
    assert "as planned" in out
    found = json.loads((tmp_path / "runs/a/audit.json").read_text())
    plain, budget = found["rows"]
    assert (plain["name"], budget["name"]) == ("plain", "budget")
    assert found["seeds"] == [5]
    assert "canaries" not in plain
    assert budget["canaries"]["at_least"] <= budget["canaries"]["promised"] <= 8
    assert budget["mechanism"]["contradictions"] == []
    assert plain["membership"]["shadows"] == 4
    assert plain["seen_by"] == {"least": 2, "greatest": 2}
    assert plain["membership"]["members"] == 4 * 3 * 16
    assert plain["inversion"]["rows"]["found"] > 0.1 > budget["inversion"]["rows"]["found"]
    page = (tmp_path / "runs/a/audit.html").read_text()
    assert "<svg" in page
    assert "No attack and no test has contradicted a budget." in page
    assert not (tmp_path / "runs/a/audits").exists()
    assert call(capsys, "study.toml", "--out", "runs/a")[0] == 2


@pytest.mark.slow
def test_contradicted_budget_fails_the_command(tmp_path, monkeypatch, capsys):
    plant("the same batch in each step", monkeypatch)
    code, out, _ = call(capsys, "study.toml", "--shadows", "0", "--only", "budget", "--out", "runs/c")
    assert code == 1
    assert (
        "contradicted: budget, seed 5: sampling: the number of steps of a training that a sample enters varies more" in out
    )
    assert "varies more than with independent draws" in (tmp_path / "runs/c/audit.html").read_text()


def test_interrupted_audit_continues_with_its_own_attacks(tmp_path, monkeypatch, capsys):
    shown = ["study.toml", "--shadows", "0", "--no-canaries", "--only", "plain"]
    whole = audit.audit_job

    def fail(job, *others):
        if job.seed == 6:
            raise RunError("the machine is tired")
        return whole(job, *others)

    monkeypatch.setattr(command, "audit_job", fail)
    code, _, err = call(capsys, *shown, "--seeds", "5,6", "--out", "runs/b")
    assert code == 1
    assert "p2pfl-sim audit --resume runs/b" in err
    monkeypatch.setattr(command, "audit_job", whole)
    assert call(capsys, "--resume", "runs/b", "--shadows", "8")[0] == 2
    seeds = []
    monkeypatch.setattr(command, "audit_job", lambda job, *others: seeds.append(job.seed) or whole(job, *others))
    code, _, _ = call(capsys, "--resume", "runs/b")
    assert code == 0
    assert seeds == [6]
    found = json.loads((tmp_path / "runs/b/audit.json").read_text())
    assert [row["seed"] for row in found["rows"]] == [5, 6]
    assert found["attacks"] == {"shadows": 0, "canaries": False}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study.toml", "--shadows", "3"], "--shadows must be 4 or more, or 0"),
        (["study.toml", "--set", 'task={name="deep-sea-treasure"}'], "an audit needs a task of a torch module"),
        (["study.toml", "--set", "task.private=head"], "an audit needs models that are released as a whole"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(arguments, message, capsys):
    code, _, err = call(capsys, *arguments, "--only", "plain", "--no-canaries")
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
