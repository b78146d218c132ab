"""Notes on a node's own data in its log."""

import numpy as np
import pytest

from p2pfl.node.cli.main import main


@pytest.mark.slow
def test_node_logs_splits_that_are_too_small(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", x=np.random.default_rng(0).normal(size=(4, 3)), y=np.arange(4) % 2)
    assert main(["init", "alice", "--task", "classification", "--data", "rows.npz", "--policy", "local"]) == 0
    assert main(["run", "alice", "--set", "rounds=1", "--until-done"]) == 0
    log = capsys.readouterr()
    assert "data: no row is held out for test: a fraction of 0.1 of 4 rows is less than half a row" in log.out + log.err
