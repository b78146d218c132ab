"""Retired names: the search finds each kind, and the tree has none."""

import msgspec
import pytest

from scripts.tools.retired_names import ApiNames, RetiredNames, Search, load_names, search_tree

LISTED = load_names()
NAMES = RetiredNames(
    api=ApiNames(
        identifiers={"OldThing": "Thing"},
        attributes={"olden": "new"},
        functions={"aged": "age_of"},
        members={"Thing.wither": "fade"},
        modules={"node/stale.py": "node/fresh.py"},
    ),
    keys={"mould": "age"},
    commands={"p2pfl-node rot": "p2pfl-node age"},
    prose={"attic": "archive"},
)
SEARCH = Search(NAMES)


def found(hits):
    return sorted({(hit.line, hit.scope.removeprefix("api."), hit.name) for hit in hits})


@pytest.mark.slow
@pytest.mark.skipif(not LISTED.enforced, reason="names are still being replaced")
def test_this_tree_has_no_retired_name():
    assert [str(hit.finding()) for hit in search_tree()] == []


def test_replacements_are_not_retired():
    for names in (LISTED.api.identifiers, LISTED.api.attributes, LISTED.api.functions, LISTED.keys, LISTED.prose):
        assert not set(names) & set(names.values())


@pytest.mark.parametrize(
    "code",
    [
        "class OldThing: ...",
        "def OldThing(): ...",
        "thing = OldThing()",
        "thing.OldThing",
        "from node.thing import OldThing as New",
        "from node.thing import New as OldThing",
        "import node.OldThing",
        "call(OldThing=1)",
        "def call(a, *, OldThing=1): ...",
        "def call(a: list[OldThing]): ...",
        "a = [OldThing for OldThing in b]",
        "with a as OldThing: ...",
        '"""A document about `OldThing`."""',
    ],
)
def test_identifier_is_found(code):
    assert found(SEARCH.python("a.py", code)) == [(1, "identifiers", "OldThing")]


@pytest.mark.parametrize(
    "code", ["thing.olden", "call(olden=1)", "class A:\n    olden: int", "class A:\n    def olden(self): ..."]
)
def test_attribute_is_found(code):
    assert [name for _, _, name in found(SEARCH.python("a.py", code))] == ["olden"]


@pytest.mark.parametrize("code", ["def aged(): ...", "class A:\n    async def aged(self): ..."])
def test_function_is_found(code):
    assert [name for _, _, name in found(SEARCH.python("a.py", code))] == ["aged"]


@pytest.mark.parametrize("owner", ["Thing", "OldThing"])
def test_member_is_found_in_new_and_retired_class(owner):
    code = f"class {owner}:\n    def wither(self): ..."
    assert (1, "members", "Thing.wither") in found(SEARCH.python("a.py", code))


@pytest.mark.parametrize(
    "code",
    [
        "import node.stale",
        "from node import stale",
        "from p2pfl.node.stale import a",
        "def f():\n    import p2pfl.node.stale",
        "# see node/stale.py",
        "'p2pfl/node/stale.py'",
    ],
)
def test_module_is_found(code):
    assert [name for _, _, name in found(SEARCH.python("a.py", code))] == ["node/stale.py"]


def test_module_that_became_a_folder_is_found_by_path():
    search = Search(NAMES, frozenset({"node/stale/board.py"}))
    assert found(search.python("a.py", "import p2pfl.node.stale.board\n# node/stale.py")) == [
        (2, "modules", "node/stale.py")
    ]


@pytest.mark.parametrize(
    "code",
    [
        "olden = 1",
        "thing.aged",
        "aged = 1",
        "class Other:\n    def wither(self): ...",
        "thing.wither()",
        "'OldThing'",
        "import node.stale_thing",
        "# other/node/stale.py",
        "NotOldThing",
        "mould = 1",
        "'attic'",
    ],
)
def test_same_word_with_another_meaning_is_no_fault(code):
    assert found(SEARCH.python("a.py", code)) == []


def test_documents_are_searched_by_kind_of_text():
    page = """# The attic

An Attic of `node.stale`, see `node/stale.py`.

| in the attics | `p2pfl-node rot` |
|---|---|

```python
def f():
    return OldThing
```

```toml
[policy]
mould = 1 # old
name = "mould"
```

```sh
p2pfl-node rot --set policy.mould=1
```

```text
OldThing in the attic
```
"""
    assert found(SEARCH.markdown("a.md", page)) == [
        (1, "prose", "attic"),
        (3, "modules", "node/stale.py"),
        (3, "prose", "attic"),
        (5, "commands", "p2pfl-node rot"),
        (5, "prose", "attic"),
        (10, "identifiers", "OldThing"),
        (15, "keys", "mould"),
        (20, "commands", "p2pfl-node rot"),
        (20, "keys", "mould"),
    ]


def test_words_that_hold_a_metaphor_are_no_fault():
    assert found(SEARCH.markdown("a.md", "Atticism, `attic`, OldThing and mould.")) == []


@pytest.mark.parametrize("text", ["mould = 1", "[mould]\na = 1", "[a.mould]\nb = 1", "[[a]]\nb = { mould = 1 }"])
def test_key_is_found(text):
    assert [name for _, _, name in found(SEARCH.toml("a.toml", text))] == ["mould"]


def test_tree_with_each_kind_of_file_is_searched(tmp_path):
    files = {
        "node/a.py": "OldThing",
        "tests/b.py": "thing.olden",
        "docs/c.md": "attic",
        "sim/scenarios/d.toml": "mould = 1",
        "scripts/e": "p2pfl-node rot",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    hits = search_tree(tmp_path, NAMES)
    assert sorted(hit.path for hit in hits) == sorted(files)
    assert str(hits[0].finding()) == "docs/c.md:1: retired name 'attic' (prose): use archive"


def test_unknown_scope_of_the_list_is_refused():
    with pytest.raises(msgspec.ValidationError, match="unknown field `metaphors`"):
        msgspec.toml.decode(b"[metaphors]\ndesk = 'coordinator'", type=RetiredNames)
