"""Distribution: the wheel, the sdist and an editable install hold one package, which user files cannot shadow."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.depth import deep

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

SCRIPT = """\
import p2pfl

result = p2pfl.simulate({"task": {"name": "teachers"}, "policy": {"name": "local"}, "nodes": 2, "rounds": 1})
reveal_type(result)
reveal_type(p2pfl.Node)
"""
USERS_OWN = ("node.py", "protocols.py", "topologies.py", "sim.py")


def call(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source, folder):
    call(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=source)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the wheel of this checkout, and a wheel built from its unpacked sdist."""
    wheel, sdist = build(ROOT, tmp_path_factory.mktemp("checkout"))
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # since 3.11.4
    [source] = unpacked.iterdir()
    return wheel, build(source, tmp_path_factory.mktemp("again"))[0]


def content(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_of_the_sdist_equals_wheel_of_the_checkout(built):
    wheel, again = built
    assert content(wheel) == content(again)


def test_wheel_holds_one_package_with_all_modules(built):
    names = set(content(built[0]))
    assert {name.split("/")[0].split("-")[0] for name in names} == {"p2pfl", "p2pfl_node"}  # the package and its metadata
    modules = {str(path.relative_to(ROOT / "p2pfl")) for path in (ROOT / "p2pfl").rglob("*.py") if not path.is_symlink()}
    for package in ("node", "protocols", "topologies", "sim"):
        modules |= {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
    modules = {name for name in modules if (ROOT / "p2pfl" / name).exists()}
    assert {f"p2pfl/{name}" for name in modules} <= names
    assert "p2pfl/py.typed" in names


def test_checkout_without_symbolic_links_can_be_imported(tmp_path):
    (tmp_path / "p2pfl").mkdir()
    for path in (ROOT / "p2pfl").iterdir():
        if path.is_symlink():  # Git writes a file with the text of the link, if the system has no links
            (tmp_path / "p2pfl" / path.name).write_text(str(path.readlink()))
            (tmp_path / path.name).symlink_to(ROOT / path.name)
        else:
            (tmp_path / "p2pfl" / path.name).symlink_to(path)
    code = "import pickle, p2pfl; print(p2pfl.simulate.__module__, pickle.loads(pickle.dumps(p2pfl.Node)), p2pfl.Node)"
    environment = ENVIRONMENT | {"PYTHONPATH": str(tmp_path)}
    name = "<class 'p2pfl.node.node.Node'>"
    assert call(sys.executable, "-c", code, cwd=tmp_path, env=environment).strip() == f"p2pfl.sim.api {name} {name}"


def test_wheel_needs_large_libraries_in_extras_only(built):
    (metadata,) = [text.decode() for name, text in content(built[0]).items() if name.endswith(".dist-info/METADATA")]
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", metadata, re.M)
    assert {"torch", "networkx", "scikit-learn", "duckdb"} <= {name for name, rest in needed if "extra ==" in rest}
    assert "numpy" in (plain := {name for name, rest in needed if "extra ==" not in rest})
    assert not {"torch", "networkx", "scikit-learn", "duckdb"} & plain


def test_wheel_holds_templates_of_new_projects(built):
    templates = {path.name for path in (ROOT / "sim" / "cli" / "new_project").iterdir()}
    assert len(templates) == 6
    assert {f"p2pfl/sim/cli/new_project/{name}" for name in templates} <= set(content(built[0]))


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request, built, tmp_path_factory):
    """Return the folder of an environment with the project installed in one of two ways; the sdist has the same wheel.

    Its dependencies come from the environment of these tests; the project itself does not.
    """
    folder = tmp_path_factory.mktemp(request.param)
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    packages = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    what = {"wheel": [built[0]], "editable": ["--editable", ROOT]}[request.param]
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-build-isolation"]
    call(*pip, "--force-reinstall", "--disable-pip-version-check", *what)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a script and user modules that have the names of this project's folders."""
    for name in USERS_OWN:
        (tmp_path / name).write_text("raise SystemExit('the module of the user was imported')\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_script_runs_next_to_modules_of_the_same_names(installed, folder):
    (folder / "script.py").write_text(SCRIPT.replace("reveal_type", "print"))
    assert "test reward" in call(installed / "bin" / "python", "script.py", cwd=folder, env=ENVIRONMENT)


def test_commands_run_next_to_modules_of_the_same_names(installed, folder):
    assert "dac-synthetic" in call(installed / "bin" / "p2pfl-sim", "list", cwd=folder, env=ENVIRONMENT)
    call(installed / "bin" / "p2pfl-node", "init", "alice", cwd=folder, env=ENVIRONMENT)
    assert (folder / "alice" / "node.toml").exists()


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory):
    """Folder of types that mypy has read, which are the same for each installation."""
    return tmp_path_factory.mktemp("mypy")


def test_mypy_knows_the_types_of_the_public_api(installed, folder, mypy_cache):
    config = mypy_cache / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")  # most of the time, for types that no line reveals
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed / "bin" / "python", "script.py"]
    printed = call(*command, "--config-file", config, "--cache-dir", mypy_cache, cwd=folder, env=ENVIRONMENT)
    revealed = [line for line in printed.splitlines() if "Revealed type" in line]
    assert "p2pfl.sim.results.results.Results" in revealed[0]
    assert "p2pfl.node.node.Node" in revealed[1]


@deep
@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_mypy_accepts_new_project(installed, tmp_path, mypy_cache):
    call(installed / "bin" / "p2pfl-sim", "new", "my_study", cwd=tmp_path, env=ENVIRONMENT)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed / "bin" / "python", "."]
    call(*command, "--cache-dir", mypy_cache, cwd=tmp_path / "my_study", env=ENVIRONMENT)


def test_dir_of_package_shows_only_public_names():
    code = "import p2pfl; print(*[n for n in dir(p2pfl) if n not in p2pfl.__all__ and not n.startswith('__')])"
    assert call(sys.executable, "-c", code, cwd=ROOT).strip() == ""
