"""Texts that admit a node: their sources, and errors that name what a user passed."""

import io

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.membership import read
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.invitation import ADMISSION, INVITATION, REQUEST, Request

LINE = Request.make(Identity.from_seed(bytes(32)), "bob")


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Return a function that offers a text by file, by standard input and as the argument."""
    monkeypatch.chdir(tmp_path)

    def offer(text):
        (tmp_path / "bob.request").write_text(text)
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return {"bob.request": "bob.request", "standard input": "-", "the argument": text}

    return offer


def test_read_takes_file_standard_input_or_text(sources):
    for word in sources(LINE + "\n").values():
        assert read(word, (REQUEST,)).strip() == LINE


def test_read_takes_text_that_a_mail_program_broke(sources):
    broken = f"\n {LINE[:9]}\n{LINE[9:]}\n"
    assert read(sources(broken)["bob.request"], (REQUEST,)) == broken


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_read_names_empty_text(sources, text):
    offered = sources(text)
    for source in ("bob.request", "standard input"):
        with pytest.raises(ConfigurationError) as error:
            read(offered[source], (INVITATION, ADMISSION))
        needed = "a token of `p2pfl-node invite` or an admission of `p2pfl-node admit`"
        assert str(error.value) == f"{source} is empty; expected {needed}"


def test_read_names_text_of_another_command(sources):
    for source, word in sources(LINE).items():
        with pytest.raises(ConfigurationError) as error:
            read(word, (INVITATION,))
        assert str(error.value) == f"{source} has a request of `p2pfl-node request`; expected a token of `p2pfl-node invite`"


def test_read_names_foreign_text_without_quoting_it(sources):
    offered = sources("eyJhbGciOiJIUzI1NiJ9.secret")
    for source in ("bob.request", "standard input"):
        with pytest.raises(ConfigurationError) as error:
            read(offered[source], (REQUEST,))
        assert (
            str(error.value)
            == f"{source} contains nothing that p2pfl-node has written; expected a request of `p2pfl-node request`"
        )


def test_read_names_file_that_cannot_be_read(sources, tmp_path):
    with pytest.raises(ConfigurationError, match=r"^cannot read none\.request: No such file or directory$"):
        read("none.request", (REQUEST,))
    (tmp_path / "bob.request").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"^bob\.request is not UTF-8 text$"):
        read("bob.request", (REQUEST,))
