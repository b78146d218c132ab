"""Studies of robust rules: their rows, their settings, and the figures of the worst attack."""

import pytest

from p2pfl.sim.cli.console import print_attack_table
from p2pfl.sim.report.attacks import AttackRow, attack_studies, title
from p2pfl.sim.report.folder import Entry, Test, Time
from p2pfl.sim.report.series import Run

CLIP, CUT = {"name": "cs+", "share": 0.3}, {"name": "trimmed", "share": 0.3}


def row(name, robust, attack=None, mean=0.5, tenth=0.25, **more):
    settings = {"name": name, "robust": robust, "policy": {"name": "dac"}, "seed": 0, "attack": attack}
    return AttackRow(name, settings | more, mean, tenth)


def study(*rows):
    (found,) = attack_studies(rows)
    return found


def a_study():
    return study(
        row("a", "none", mean=0.9),
        row("b", "none", {"name": "ipm", "share": 0.3}, mean=0.2, tenth=0.3),
        row("c", "none", {"name": "alie", "share": 0.3}, mean=0.4, tenth=0.1),
        row("d", CLIP, mean=0.8),
        row("e", CLIP, {"name": "ipm", "share": 0.3}, mean=None),
        row("f", CLIP, {"name": "alie", "share": 0.3}, mean=0.8),
    )


def test_study_has_rows_by_rule_and_attack():
    found = a_study()
    assert (found.rules, found.attacks) == (("none", "cs+"), ("no attack", "ipm", "alie"))
    assert (found.label, found.attackers) == ("", "30 %")
    assert found.cells["cs+", "alie"].name == "f"
    assert found.clean("none", "mean") == 0.9


def test_worst_attack_is_by_figure_and_direction():
    found = a_study()
    assert found.worst("none", "mean", True) == (0.2, "ipm")
    assert found.worst("none", "worst_tenth", True) == (0.1, "alie")
    assert found.worst("none", "mean", False) == (0.4, "alie")
    assert found.worst("cs+", "mean", True) == (0.8, "alie")  # the other has no number


def test_settings_and_shares_separate_studies():
    rows = []
    for neighbours in (4, 8):
        policy = {"name": "dac", "neighbours": neighbours}
        for robust in ("none", CUT):
            rows.append(row(f"{neighbours} {robust}", robust, policy=policy))
            for share in (0.1, 0.3):
                rows.append(row(f"{neighbours} {robust} {share}", robust, {"name": "ipm", "share": share}, policy=policy))
    found = attack_studies(rows)
    assert [title(each, found) for each in found] == [
        "neighbours 4, 10 % attackers",
        "neighbours 4, 30 % attackers",
        "neighbours 8, 10 % attackers",
        "neighbours 8, 30 % attackers",
    ]
    assert all(len(each.cells) == 4 for each in found)  # the rows without attack are in each


def test_options_name_levels_of_equal_names():
    weak, strong = ({"name": "ipm", "tau": tau, "nodes": [0, 1]} for tau in (1.0, 2.0))
    found = study(row("a", "none", weak), row("b", "none", strong), row("c", CLIP, weak), row("d", "median-clip", weak))
    assert found.attacks == ("ipm tau=1.0", "ipm tau=2.0")
    assert found.attackers == "2"


@pytest.mark.parametrize("robust", ["none", CLIP])
def test_rows_with_one_rule_are_no_study(robust):
    assert attack_studies([row("a", robust), row("b", robust, {"name": "ipm"})]) == []


def test_rows_without_different_attacks_are_no_study():
    assert attack_studies([row("a", "none"), row("b", CLIP)]) == []


def robust_runs(**settings):
    """Four nodes; node 3 attacks. Without attack its accuracy is below that of the others."""
    each = {
        "none": ([0.8, 0.8, 0.8, 0.4], []),
        "none, ipm": ([0.4, 0.4, 0.4, None], [3]),
        "clip": ([0.8, 0.8, 0.8, 0.3], []),
        "clip, ipm": ([0.8, 0.8, 0.7, None], [3]),
    }
    found = []
    for name, (nodes, attackers) in each.items():
        honest = [value for value in nodes if value is not None]
        test = Test(mean=sum(honest) / len(honest), worst_decile=min(honest), nodes=nodes)
        made = Entry(name, 0, 4, 1, "accuracy", True, Time(1.0), test=test, attackers=attackers)
        table = {"name": name, "robust": "none" if name.startswith("none") else "median-clip"}
        table |= {"attack": {"name": "ipm", "nodes": [3]}} if attackers else {}
        found.append(Run(name, name, [made], made, table | {key: value(table) for key, value in settings.items()}))
    return found


def test_table_has_one_line_for_each_rule(capsys):
    print_attack_table(robust_runs())
    lines = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip("│ ").startswith(("none", "median"))
    ]
    lines = [[word for word in line if word not in ("│", "/")] for line in lines]
    assert lines == [
        ["none", "0.700", "0.400", "ipm", "0.400", "0.400"],
        ["median-clip", "0.675", "0.300", "ipm", "0.767", "0.700"],
    ]
    print_attack_table(robust_runs(rounds=lambda table: 2 + (table["robust"] == "none")))
    assert not capsys.readouterr().out  # each rule has other settings
    print_attack_table(robust_runs()[:1])
    assert not capsys.readouterr().out
