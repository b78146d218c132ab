"""Golden vectors against a reader written from docs/wire-protocol.md alone: contents, and causes of refusals."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import wire_reader
from tests.conformance.wire_types import RefusedError

TESTS = Path(__file__).parent
VECTORS = TESTS.parents[1] / "docs" / "vectors"
OURS = {"p2pfl"}


def vectors():
    """Return the vectors of all files."""
    return [vector for some in GROUPS.values() for vector in some]


def grouped():
    """Return the vectors of all files, by file and check: a test for each of them would cost as much again."""
    found = {}
    for path in sorted(VECTORS.glob("*.json")):
        for vector in json.loads(path.read_text()).get("vectors", []):
            found.setdefault(f"{path.stem}: {vector['check']}", []).append(vector)
    return found


GROUPS = grouped()


def check_vectors(group, run):
    """Compare the results of a reader with the expected results of a group, all of them."""
    wrong = {}
    for vector in GROUPS[group]:
        try:
            check_vector(vector, run)
        except Exception as error:  # also of a reader that fails in another way than by a refusal
            wrong[vector["name"]] = f"{type(error).__name__}: {error}"
        except pytest.fail.Exception as error:
            wrong[vector["name"]] = str(error)
    assert wrong == {}


def check_vector(vector, run):
    """Compare the result of a reader with the expected result of a vector."""
    if "cause" in vector:
        with pytest.raises(RefusedError) as refused:
            run(vector["check"], vector["given"])
        assert refused.value.cause == vector["cause"], vector["why"]
        if "membership_version" in vector:
            assert refused.value.membership_version == vector["membership_version"]
    else:
        assert json.loads(json.dumps(run(vector["check"], vector["given"]))) == vector["expect"]


@pytest.mark.parametrize("group", GROUPS)
def test_reader_agrees_with_vectors(group):
    check_vectors(group, lambda check, given: wire_reader.CHECKS[check](given))


def test_every_check_has_valid_and_invalid_vectors():
    every = vectors()
    assert {v["check"] for v in every if "expect" in v} == set(wire_reader.CHECKS)
    cannot_fail = {"layout", "agreed", "topic", "encode", "rings", "noise of an edge"}
    assert {v["check"] for v in every if "cause" in v} == set(wire_reader.CHECKS) - cannot_fail


def test_every_documented_cause_has_a_vector():
    table = (TESTS.parents[1] / "docs" / "wire-protocol.md").read_text().partition("\n## Causes\n")[2].partition("\n## ")[0]
    words = {word for line in table.splitlines() if line.startswith("| `") for word in line.split("|")[1].split("`")[1::2]}
    found = {vector.get("cause") for vector in vectors()} - {None}
    # vectors would need a link that is not introduced, and an inviter that remembers who has looked
    assert words - found == {"not introduced", "earlier version"}
    assert found <= words


def test_vector_names_are_unique():
    for path in VECTORS.glob("*.json"):
        names = [(v["check"], v["name"]) for v in json.loads(path.read_text()).get("vectors", [])]
        assert len(names) == len(set(names)), path.name


def imported_modules(path):
    for element in ast.walk(ast.parse(path.read_text())):
        if isinstance(element, ast.ImportFrom) and element.module == "tests.conformance":
            yield from (name.name for name in element.names)
        elif isinstance(element, ast.Import):
            yield from (name.name.removeprefix("tests.conformance.").partition(".")[0] for name in element.names)
        elif isinstance(element, ast.ImportFrom):
            yield "." if element.level else element.module.removeprefix("tests.conformance.").partition(".")[0]


READER = [
    "wire_reader",
    "wire_types",
    "wire_models",
    "wire_coordination",
    "wire_committee",
    "wire_rings",
    "wire_sums",
    "wire_edges",
]


@pytest.mark.parametrize("name", ["test_golden", *READER])
def test_reader_and_this_test_do_not_import_project(name):
    allowed = {*sys.stdlib_module_names, "pytest", "msgpack", "cryptography", "blake3", *READER}
    assert set(imported_modules(TESTS / f"{name}.py")) <= allowed


def test_loading_reader_does_not_import_project():
    code = f"import sys, tests.conformance.wire_reader; sys.exit(bool(set({sorted(OURS)!r}) & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=TESTS.parents[1]).returncode == 0
