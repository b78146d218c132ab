"""Change of one key of node.toml."""

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.folder import config
from p2pfl.node.folder.config_edit import set_text


def test_set_text_changes_one_line_and_keeps_its_comment(tmp_path):
    config.create(tmp_path / "bob", "bob")
    path = tmp_path / "bob" / config.CONFIG
    before = path.read_text().splitlines()
    for url in ("mqtts://a@h:8883#sha256=" + "ab" * 32, "mqtt://h:1883"):
        set_text(tmp_path / "bob", "broker", url)
        assert config.load(tmp_path / "bob").broker == url
    after = path.read_text().splitlines()
    (changed,) = [number for number, line in enumerate(after) if line != before[number]]
    assert after[changed] == before[changed].replace('broker = ""', 'broker = "mqtt://h:1883"')
    assert path.stat().st_mode & 0o777 == 0o600


def test_set_text_adds_missing_key_above_the_tables(tmp_path):
    path = tmp_path / config.CONFIG
    path.write_text('name = "bob"\n[task]\nname = "digits"\nbroker = "x"\n')
    set_text(tmp_path, "broker", 'a "b"')
    assert path.read_text() == 'name = "bob"\nbroker = "a \\"b\\""\n\n[task]\nname = "digits"\nbroker = "x"\n'


@pytest.mark.parametrize("before", ["x = [\r\n[1],\r\n]\r\nbroker = 'y' # mine\r\n", "'broker' = 1\n"])
def test_set_text_keeps_the_form_of_the_file(tmp_path, before):
    path = tmp_path / config.CONFIG
    path.write_text(before, newline="")
    set_text(tmp_path, "broker", "mqtt://h")
    assert path.read_bytes().decode() == before.replace("'y'", '"mqtt://h"').replace("1\n", '"mqtt://h"\n')


@pytest.mark.parametrize("content", [b"broken", b"x = '\xff'", b"x.y = 1\nx = 2"])
def test_set_text_leaves_file_that_is_not_toml(tmp_path, content):
    path = tmp_path / config.CONFIG
    path.write_bytes(content)
    with pytest.raises(
        ConfigurationError, match=r'^cannot set broker: .*; write broker = "mqtt://h" above the first table of'
    ):
        set_text(tmp_path, "broker", "mqtt://h")
    assert path.read_bytes() == content


def test_set_text_reports_missing_file(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot set broker: No such file"):
        set_text(tmp_path, "broker", "mqtt://h")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\n", 'x = 1\n\n[addresses]\nalice = "h:1"\n'),
        ('[addresses]  # of members\nbob = "h:2"\n', '[addresses]  # of members\nbob = "h:2"\nalice = "h:1"\n'),
        (
            '[addresses]\nalice = "h:3" # old\n[codec]\nalice = "x"\n',
            '[addresses]\nalice = "h:1" # old\n[codec]\nalice = "x"\n',
        ),
        ('addresses = { bob = "h:2" }\n', 'addresses = { bob = "h:2", alice = "h:1"}\n'),
        ('addresses.bob = "h:2"\nx = 1\n', 'addresses.bob = "h:2"\naddresses.alice = "h:1"\nx = 1\n'),
    ],
)
def test_set_text_changes_key_of_table(tmp_path, before, after):
    path = tmp_path / config.CONFIG
    path.write_text(before)
    set_text(tmp_path, "alice", "h:1", table="addresses")
    assert path.read_text() == after


def test_set_text_leaves_value_in_place_of_a_table(tmp_path):
    path = tmp_path / config.CONFIG
    path.write_text("addresses = 3\n")
    message = r'addresses is not a table; write alice = "h:1" below \[addresses\] of .*node.toml'
    with pytest.raises(ConfigurationError, match=message):
        set_text(tmp_path, "alice", "h:1", table="addresses")
    assert path.read_text() == "addresses = 3\n"
