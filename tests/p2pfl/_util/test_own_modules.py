"""Modules of the user: their files, and modules that hide them."""

import pytest

from p2pfl._util.registry import find_module, module_files
from p2pfl.errors import ConfigurationError


def test_module_of_folder_is_used_unless_installed(tmp_path, monkeypatch):
    installed, own = tmp_path / "installed", tmp_path / "own"
    for folder, module in ((installed, "twice"), (own, "twice"), (own, "once")):
        folder.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(installed))
    assert find_module(str(own), "once") == (True, "")
    assert find_module(str(own), "twice") == (True, str(installed / "twice.py"))
    assert find_module(str(own), "never") == (False, "")
    assert [find_module(str(own), name).used for name in ("once", "twice", "never")] == [True, False, False]
    assert find_module(str(installed), "twice").used


def test_files_of_broken_module_are_refused(tmp_path):
    (tmp_path / "broken.py").write_text("def\n")
    with pytest.raises(ConfigurationError, match=r"broken\.py is not valid Python"):
        module_files(tmp_path, ["broken"])


def test_files_of_modules_that_import_each_other(tmp_path):
    (tmp_path / "first.py").write_text("import second, json\n")
    (tmp_path / "second.py").write_text("from first import this\n")
    assert [path.name for path in module_files(tmp_path, ["first", "missing"])] == ["first.py", "second.py"]
