"""Judges run tools alike on every machine: without colours, and with standard output apart where a program reads it."""

import json
import stat

import pytest

from scripts.tools.judges import COLOURED, CannotRunError, run


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Program that writes JSON, and a line on standard error that is coloured as real tools do it."""
    path = tmp_path / "tool"
    path.write_text(
        "#!/bin/sh\n"
        f"for name in {' '.join(COLOURED)}; do\n"
        '    eval "value=\\${$name:-}"; [ -z "$value" ] || colour=$(printf "\\033[32m")\ndone\n'
        'printf "%sINFO\\n" "$colour" >&2\necho "[1]"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return "tool"


@pytest.mark.parametrize("name", COLOURED)
def test_tools_do_not_colour_in_continuous_integration(tool, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert sorted(run(tool).stdout.splitlines()) == ["INFO", "[1]"]


def test_standard_output_is_apart_where_a_program_reads_it(tool):
    done = run(tool, apart=True)
    assert json.loads(done.stdout) == [1]
    assert done.stderr == "INFO\n"


def test_missing_tool_cannot_run():
    with pytest.raises(CannotRunError, match="no-such-tool is not installed"):
        run("no-such-tool")
