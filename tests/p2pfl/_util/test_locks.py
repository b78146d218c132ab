"""Locks between processes. Each open file has its own lock, so that one process can hold two."""

import pytest

from p2pfl._util.atomic_files import LOCK, is_folder_locked, lock_folder
from p2pfl._util.disk import exclusive, is_locked, lock
from p2pfl.errors import ConfigurationError


def test_file_is_locked_until_it_is_closed(tmp_path):
    path = tmp_path / "a.lock"
    assert not is_locked(path)
    with lock(path):
        assert is_locked(path)
        with pytest.raises(BlockingIOError, match="another process has locked it for 0 s"):
            lock(path)
        with pytest.raises(BlockingIOError, match=r"another process has locked it for 0\.05 s"), exclusive(path, 0.05):
            pass
    assert not is_locked(path)
    with exclusive(path):
        assert is_locked(path)
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o600, b"")


def test_locked_folder_names_what_uses_it(tmp_path):
    with lock_folder(tmp_path), pytest.raises(ConfigurationError, match="is in use: another process works on it"):
        lock_folder(tmp_path, "works on it")
    assert not is_folder_locked(tmp_path)


def test_lock_file_that_cannot_be_opened_is_reported(tmp_path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(ConfigurationError, match=r"cannot write .*lock: Is a directory"):
        lock_folder(tmp_path)
    assert is_folder_locked(tmp_path)
