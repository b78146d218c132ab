"""TOML from others: files that are too deep, too long or too large are refused with a one-line error."""

import pytest

from p2pfl._util import toml_tables
from p2pfl.data.tabular.table import read_schema
from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli import main as cli
from p2pfl.sim.scenario.scenario import load
from tests.support.extras import needs_torch

DEEP = {
    "lists": "a = " + "[" * 100_000,
    "closed lists": "a = " + "[" * 300 + "]" * 300,
    "tables": "a = " + "{ b = " * 100_000,
    "dotted keys": "a" + ".a" * 5000 + " = 1",
    "headers": "[a" + ".a" * 5000 + "]",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_toml_nested_too_deep_is_refused(tmp_path, text):
    path = tmp_path / "deep.toml"
    path.write_text(text)
    for read in (toml_tables.read, read_schema, lambda path: load(str(path))):
        with pytest.raises(ConfigurationError, match=r"deep\.toml: tables and lists are nested more than 64 deep$"):
            read(path)


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 20, "0x" + "f" * 20_000, "-9223372036854775809"])
def test_toml_integer_beyond_64_bits_is_refused(tmp_path, number):
    path = tmp_path / "many.toml"
    path.write_text(f"a = [{{ b = {number} }}]")
    with pytest.raises(ConfigurationError, match=r"more than 64 bits|Exceeds the limit") as caught:
        toml_tables.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key", ["a" + ".a" * 70, "x = {" + " . 'a.b'" * 70, '[" " . ' + "a." * 70, 'x = """"""\n' + "a." * 70]
)
def test_toml_key_of_many_parts_is_refused_before_parsing(key):
    with pytest.raises(ValueError, match=r"^tables and lists are nested more than 64 deep$"):
        toml_tables.parse(f"{key} has an error of syntax".encode())


@pytest.mark.parametrize("text", ["1 # {}", '"{}\\"{}"', "'{}\"{}'", '"""" {}\\""" {}"""""', "'''' {}\n{}'''''"])
def test_toml_dots_in_text_and_comment_are_read(text):
    value = text.replace("{}", "a." * 70)
    assert toml_tables.parse(f"a = {value}".encode()).keys() == {"a"}


def test_toml_of_ordinary_depth_is_read():
    text = "a = " + "[" * 60 + "9223372036854775807, -9223372036854775808, true, 1e400" + "]" * 60
    assert toml_tables.parse(text.encode()).keys() == {"a"}


def test_toml_file_that_is_too_long_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "long.toml"
    path.write_bytes(b"#" * 101)
    monkeypatch.setattr(toml_tables, "LONGEST", 100)
    with pytest.raises(ConfigurationError, match="it has more than"):
        toml_tables.read(path)


@needs_torch
@pytest.mark.parametrize("change", ["nodes=" + "[" * 100_000, "nodes=" + "9" * 20])
def test_set_option_has_the_limits_of_toml(capsys, change):
    code = cli.main(["run", "digits-gossip", "--set", change])
    err = capsys.readouterr().err
    assert code == 2
    assert err.startswith("command line: nodes: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ('task = { name = "digits" }\ntask.samples = 40', "write the key inside"),
        ('task = { name = "digits" }\n[task]\nsamples = 40', "write all of its keys in one place"),
        ('[task]\nname = "digits"\n[task]\nsamples = 40', "write all of its keys in one place"),
        ("nodes = 3\nnodes = 4", "remove one of the two"),
        ("policy = local", "a text in quotes"),
    ],
)
def test_frequent_mistakes_of_toml_come_with_the_remedy(tmp_path, text, remedy):
    path = tmp_path / "study.toml"
    path.write_text(f"{text}\n")
    with pytest.raises(ConfigurationError, match=rf"study\.toml: .* \(at .*\); .*{remedy}"):
        toml_tables.read(path)
