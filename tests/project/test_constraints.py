"""Pinned versions of the development environment, against p2pfl's requirements."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
PINS = dict(re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)(?:; .+)?", line).groups() for line in LINES)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [
    Requirement(text)
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for text in texts
    if not text.startswith(PROJECT["name"])
]
VERSIONS = {canonicalize_name(name): version for name, version in PINS.items()}


def test_pins_of_dependencies_satisfy_their_requirements():
    assert NEEDED
    for needed in NEEDED:
        assert needed.specifier.contains(VERSIONS[canonicalize_name(needed.name)]), needed


def test_pins_name_no_platform():
    assert not any("+" in pin for pin in VERSIONS.values())
    assert len(VERSIONS) == len(PINS)


def needed_distributions():
    """Yield the installed distributions that the extras need on this platform, directly or indirectly."""
    seen, left = set(), [(needed, "") for needed in NEEDED]
    while left:
        needed, extra = left.pop()
        name = canonicalize_name(needed.name)
        key = (name, frozenset(needed.extras))
        if key not in seen and (needed.marker is None or needed.marker.evaluate({"extra": extra})):
            seen.add(key)
            try:
                texts = requires(name) or ()
            except PackageNotFoundError:
                continue
            yield name
            left += [(Requirement(text), each) for text in texts for each in (*needed.extras, "")]


@pytest.mark.slow
def test_every_distribution_of_the_environment_is_pinned():
    missing = set(needed_distributions()) - set(VERSIONS)
    assert sorted(name for name in missing if not name.startswith(("nvidia-", "cuda-", "triton"))) == []  # they follow torch


@pytest.mark.slow
def test_pins_allow_the_first_release_of_the_oldest_python():
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"  # Debian 12 has 3.11.2
    found = {name: metadata(name).get("Requires-Python") or "" for name in needed_distributions()}
    assert {name: text for name, text in found.items() if not SpecifierSet(text).contains(oldest)} == {}


def test_pins_are_sorted_and_keep_torch():
    assert sorted(LINES, key=str.lower) == LINES
    assert VERSIONS["torch"] == "2.13.0"


def test_zeroconf_versions_without_cache_limits_are_excluded():
    (needed,) = [each for each in NEEDED if each.name == "zeroconf"]
    assert not any(needed.specifier.contains(old) for old in ("0.136.0", "0.148.0", "0.149.4"))
    from zeroconf import const

    limits = ("CACHE_RECORDS", "QUESTION_HISTORY_ENTRIES", "KNOWN_ANSWERS_PER_HISTORY_ENTRY", "DEFERRED_ADDRS")
    assert all(getattr(const, f"_MAX_{limit}") <= 10_000 for limit in limits)
    assert needed.specifier.contains(version("zeroconf"))
