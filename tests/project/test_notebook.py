"""The example notebook: it runs, and shows tables and curves."""

import os
from itertools import groupby

import pytest

from scripts.tools import ROOT

nbformat = pytest.importorskip("nbformat", reason="needs the extra test-all")
NotebookClient = pytest.importorskip("nbclient", reason="needs the extra test-all").NotebookClient

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def outputs(notebook):
    """Return the outputs of all cells, each as its text by type."""
    return [
        output.get("data", {}) | ({"stream": output.text} if output.output_type == "stream" else {})
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]


def kinds(shown):
    """Return the types of outputs in their order; equal ones in a row, such as lines of a stream, count once."""
    return [types for types, _ in groupby(sorted(each) for each in shown)]


@pytest.mark.slow
def test_notebook_runs_and_shows_the_committed_kinds_of_output(tmp_path):
    committed = nbformat.read(NOTEBOOK, as_version=4)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    client.execute(env=os.environ | {"PYTHONPATH": path, "MPLBACKEND": ""})
    shown, expected = outputs(notebook), outputs(committed)
    assert kinds(shown) == kinds(expected)
    assert any("image/png" in each for each in shown)
    assert sum("<table" in each.get("text/html", "") for each in shown) >= 4
    assert not any("stderr" in output.get("name", "") for cell in notebook.cells for output in cell.get("outputs", ()))
