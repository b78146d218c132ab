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
    assert after[changed] == 'broker = "mqtt://h:1883" # ' + before[changed].partition(" # ")[2]
    assert path.stat().st_mode & 0o777 == 0o600


def test_set_text_adds_missing_key_above_the_tables(tmp_path):
    path = tmp_path / config.CONFIG
    path.write_text('name = "bob"\n[task]\nname = "digits"\nbroker = "x"\n')
    set_text(tmp_path, "broker", 'a "b"')
    assert path.read_text() == 'broker = "a \\"b\\""\nname = "bob"\n[task]\nname = "digits"\nbroker = "x"\n'


@pytest.mark.parametrize("text", ["x = [\n[1],\n]\nbroker = 'y'\n", "broken", "'broker' = 1\n"])
def test_set_text_leaves_file_that_it_does_not_understand(tmp_path, text):
    path = tmp_path / config.CONFIG
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r'write broker = "mqtt://h" above the first table of .*node.toml'):
        set_text(tmp_path, "broker", "mqtt://h")
    assert path.read_text() == text


def test_set_text_reports_missing_file(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot set broker: No such file"):
        set_text(tmp_path, "broker", "mqtt://h")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\n", 'x = 1\n\n[addresses]\nalice = "h:1"\n'),
        ('[addresses]  # of members\nbob = "h:2"\n', '[addresses]  # of members\nalice = "h:1"\nbob = "h:2"\n'),
        (
            '[addresses]\nalice = "h:3" # old\n[codec]\nalice = "x"\n',
            '[addresses]\nalice = "h:1" # old\n[codec]\nalice = "x"\n',
        ),
    ],
)
def test_set_text_changes_key_of_table(tmp_path, before, after):
    path = tmp_path / config.CONFIG
    path.write_text(before)
    set_text(tmp_path, "alice", "h:1", table="addresses")
    assert path.read_text() == after


def test_set_text_of_table_leaves_inline_table(tmp_path):
    path = tmp_path / config.CONFIG
    path.write_text('addresses = { bob = "h:2" }\n')
    with pytest.raises(ConfigurationError, match=r'write alice = "h:1" below \[addresses\] of .*node.toml'):
        set_text(tmp_path, "alice", "h:1", table="addresses")
    assert path.read_text() == 'addresses = { bob = "h:2" }\n'
