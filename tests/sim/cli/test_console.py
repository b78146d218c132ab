"""Table of a run on a terminal: it fits 80 columns, and nothing is cut off."""

from p2pfl._util.console import run_command
from p2pfl.sim.cli.console import print_table


def row(name, budget=None, **more):
    made = {"name": name, "mean": 0.9671, "std": 0.0111, "seeds": 3, "bytes": 2493.23e6}
    made |= {"reached": {"seeds": 3, "round": 34.7, "virtual_s": 116.7, "bytes": 144.21e6}, "front": True}
    return made | ({} if budget is None else {"varied": {"budget.models": budget}}) | more


def printed(capsys, monkeypatch, rows, columns=80, **more):
    monkeypatch.setenv("COLUMNS", str(columns))
    runs = [{"metric": "accuracy"}]
    print_table({"scenario": "study", "seeds": [0, 1, 2], "target": 0.85, "runs": runs, "table": rows} | more)
    lines = capsys.readouterr().out.splitlines()[1:-1]
    return [line for line in lines if not line.startswith("to 0.85")]  # an explanation below the table


STUDY = [row(f"{name}, budget.models={budget}", budget) for name in ("complete", "small-world") for budget in (4, 0)]


def test_command_in_deleted_folder_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run_command(lambda: 0) == 2
    assert capsys.readouterr().err == "the current folder was deleted; go to another folder first\n"


def test_table_of_a_study_fits_80_columns(capsys, monkeypatch):
    lines = printed(capsys, monkeypatch, STUDY, varied={"budget.models": [4, 0]})
    assert max(map(len, lines)) <= 80
    assert [line.split()[:3] for line in lines[4:8]] == [
        [name, budget, "0.967"] for name in ("complete", "small-world") for budget in ("4", "none")
    ]
    assert lines[2].split() == ["run", "models", "accuracy", "seeds", "sent", "to", "0.850", "s", "MB", "front"]
    assert all(line.split()[3:] == ["0.011", "2493.23", "34.7", "116.7", "144.21", "*"] for line in lines[4:8])


def test_table_has_lines_where_the_terminal_is_wide(capsys, monkeypatch):
    lines = printed(capsys, monkeypatch, STUDY, columns=130, varied={"budget.models": [4, 0]})
    assert [cell.strip() for cell in lines[1].split("┃")[1:5]] == ["run", "budget.models", "accuracy", "+- over seeds"]


def test_table_of_one_seed_has_no_spread_over_seeds(capsys, monkeypatch):
    lines = printed(capsys, monkeypatch, [row("a", seeds=1, std=0.0)], columns=130, seeds=[0], target=0.85)
    heads, cells = ([cell.strip() for cell in lines[k].split(sign)[1:-1]] for k, sign in ((1, "┃"), (3, "│")))
    assert heads[:3] == ["run", "accuracy", "MB sent"]
    assert cells[:3] == ["a", "0.967", "2493.23"]


def test_difference_from_a_row_has_its_spread(capsys, monkeypatch):
    against = {"name": "alone", "times_bytes": None}
    rows = [
        row("alone", against=against | {"difference": 0.0, "std": None}),
        row("dac", mean=0.99, against=against | {"difference": 0.0229, "std": 0.00061}),
    ]
    lines = printed(capsys, monkeypatch, rows)
    assert [line.split()[4:7] for line in lines[4:6]] == [["+0.0000", "34.7", "116.7"], ["+0.0229", "0.0006", "34.7"]]
    assert lines[-1] == (
        "+- vs alone: standard deviation over the seeds of this difference; a difference within it is not decided"
    )


def test_long_names_of_runs_are_wrapped(capsys, monkeypatch):
    name = "a policy with a very long name/and more of it"
    lines = printed(capsys, monkeypatch, [row(name)])
    assert max(map(len, lines)) <= 80
    widest = lines[2].index(" accuracy")
    assert "".join(line[:widest] for line in lines[4:]).split() == name.split()


def test_table_has_left_out_solutions_and_constant_model(capsys, monkeypatch):
    figures = {"hypervolume": 0.7, "constant": 0.75, "left_out": 4.0, "solutions": 5.0}
    text = "\n".join(printed(capsys, monkeypatch, [row("a", objectives=figures), row("b", objectives={"hypervolume": 0.8})]))
    assert "4 of 5" in text
    assert "0.750" in text


def test_names_with_brackets_are_printed_as_they_are(capsys, monkeypatch):
    assert "[/b]" in " ".join(printed(capsys, monkeypatch, [row("[red] a [/b]")]))


def test_rows_of_one_stage_are_named_below_the_table(capsys, monkeypatch):
    both = {"trained": 0.9, "merged": 0.8}
    rows = [row("auto", stages=both, reported_stage="auto"), row("fixed", stages=both, reported_stage="merged")]
    rows += [row("alone", stages={"trained": 0.7}, reported_stage="merged")]
    monkeypatch.setenv("COLUMNS", "130")
    print_table({"scenario": "study", "seeds": [0], "runs": [{"metric": "accuracy"}], "table": rows})
    lines = capsys.readouterr().out.splitlines()
    assert "accuracy: of each node's model that is best on validation, trained or merged; in fixed only merged" in lines
