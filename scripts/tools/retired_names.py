"""Search for retired names: identifiers, modules, TOML keys, commands, and metaphors in documents.

`retired_names.toml` lists them and their replacements. `python -m scripts.tools.retired_names` prints every hit of the
tree, and `--count` prints the number of hits of each name.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec

from scripts.tools.findings import ROOT, Finding, find_files
from scripts.tools.markdown import text_lines
from scripts.tools.source_tree import imported_names

NAMES = Path(__file__).with_name("retired_names.toml")
PASSED = ("CHANGELOG.md", f"scripts/tools/{NAMES.name}")  # they mention earlier names
SCRIPTS = ("scripts", "deploy", ".ci")

_BLOCK = re.compile(r"^( *)(`{3,})(\S*)[^\n]*\n(.*?)^\1\2 *$", re.M | re.S)
_SPAN = re.compile(r"(`+)(?!`)([^`\n]+)\1(?!`)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SETTING = re.compile(r"--set[ =]([\w.]+)=")

Names = Mapping[str, str]


class ApiNames(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Retired names in code, by the scope in which they must not be used; see the comments of the list."""

    identifiers: Names = {}
    attributes: Names = {}
    functions: Names = {}
    members: Names = {}
    modules: Names = {}


class RetiredNames(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Retired names by scope, each with its replacement; `enforced` enables the test of the whole tree."""

    enforced: bool = True
    api: ApiNames = ApiNames()
    keys: Names = {}
    commands: Names = {}
    prose: Names = {}


class Hit(NamedTuple):
    """One use of a retired name."""

    path: str
    line: int
    scope: str
    name: str
    replacement: str

    def finding(self) -> Finding:
        """Return the hit as a finding."""
        return Finding(self.path, self.line, f"retired name {self.name!r} ({self.scope}): use {self.replacement}")


def load_names(path: Path = NAMES) -> RetiredNames:
    """Read the list of retired names."""
    return msgspec.toml.decode(path.read_bytes(), type=RetiredNames, strict=True)


class Search:
    """Search for retired names in texts.

    Args:
        names: the names to search.
        existing: the modules of the tree by path, such as `node/status/board.py`; if the tree has a module or folder
            with the name of a retired module, that module is searched by its path only.
    """

    def __init__(self, names: RetiredNames, existing: frozenset[str] = frozenset()) -> None:
        self._names = names
        taken = {
            str(parent)
            for path in existing
            for parent in (PurePosixPath(path).with_suffix(""), *PurePosixPath(path).parents)
        }
        dotted = {path: path.removesuffix(".py") for path in names.api.modules}
        self._dotted = {
            name.replace("/", "."): path for path, name in dotted.items() if name not in taken or path in existing
        }
        self._paths = _pattern(names.api.modules, r"(?<![\w/.-])(?:p2pfl/)?({})(?!\w)")
        self._commands = _pattern(names.commands, r"(?<![\w-])({})(?![\w-])")
        self._prose = _pattern(names.prose, r"\b({})(?:s|es|ed|ing)?\b", re.I)

    def python(self, path: str, text: str, offset: int = 0) -> Iterator[Hit]:
        """Yield the hits in Python code; `offset` is the number of lines before it in its file."""
        try:
            module = ast.parse(text)
        except SyntaxError:  # a fragment in a document
            for number, fragment in enumerate(text.splitlines(), offset + 1):
                yield from self._words(path, number, fragment)
            return
        for element in ast.walk(module):
            line = getattr(element, "lineno", 1) + offset
            for scope, name in self._uses(element):
                yield Hit(path, line, f"api.{scope}", name, getattr(self._names.api, scope)[name])
            for imported in imported_names(element, "p2pfl"):
                yield from self._imports(path, line, imported)
            yield from self._docstring(path, element, offset)
        yield from self._references(path, text, offset)

    def markdown(self, path: str, text: str) -> Iterator[Hit]:
        """Yield the hits in Markdown: metaphors in its prose; names, keys and commands in its code."""
        yield from self._references(path, text)
        for block in _BLOCK.finditer(text):
            offset = text.count("\n", 0, block.start(4))
            if block[3] == "python":
                yield from self.python(path, block[4], offset)
            elif block[3] == "toml":
                yield from self.toml(path, block[4], offset)
            elif block[3] in ("sh", "bash", "console"):
                yield from self.script(path, block[4], offset)
        for number, line in text_lines(text):
            for span in _SPAN.finditer(line):
                yield from self._words(path, number, span[2])
                yield from self.script(path, span[2], number - 1)
            for word in self._prose.finditer(_SPAN.sub("", line)):
                name = word[1].lower()
                yield Hit(path, number, "prose", name, self._names.prose[name])

    def toml(self, path: str, text: str, offset: int = 0) -> Iterator[Hit]:
        """Yield the hits among the keys of a TOML document."""
        try:
            keys = set(_keys(tomllib.loads(text)))
        except tomllib.TOMLDecodeError:
            return
        for name in self._names.keys.keys() & keys:
            for number, line in enumerate(text.splitlines(), offset + 1):
                if re.search(rf"(?<![\w-])[\"']?{re.escape(name)}[\"']?(?=\s*[=.\]])", line.partition("#")[0]):
                    yield Hit(path, number, "keys", name, self._names.keys[name])

    def script(self, path: str, text: str, offset: int = 0) -> Iterator[Hit]:
        """Yield the hits in shell commands, with the keys that `--set` names."""
        for number, line in enumerate(text.splitlines(), offset + 1):
            for word in self._commands.finditer(line):
                yield Hit(path, number, "commands", word[1], self._names.commands[word[1]])
            for setting in _SETTING.finditer(line):
                for name in setting[1].split("."):
                    if name in self._names.keys:
                        yield Hit(path, number, "keys", name, self._names.keys[name])

    def _uses(self, element: ast.AST) -> Iterator[tuple[str, str]]:
        """Yield the retired names in one element of code, each with its scope in [api]."""
        api = self._names.api
        for name in _identifiers(element):
            if name in api.identifiers:
                yield "identifiers", name
        match element:
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) if name in api.attributes:
                yield "attributes", name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.lstrip("_") in api.functions:
                yield "functions", name.lstrip("_")
            case ast.ClassDef(name=owner):
                for name in _members(element):
                    if name in api.attributes:
                        yield "attributes", name
                    for new in {owner, api.identifiers.get(owner, owner)}:
                        if f"{new}.{name}" in api.members:
                            yield "members", f"{new}.{name}"

    def _docstring(self, path: str, element: ast.AST, offset: int) -> Iterator[Hit]:
        """Yield the hits in the code spans of a docstring."""
        if isinstance(element, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and element.body:
            docstring = ast.get_docstring(element, clean=False) or ""
            for number, line in enumerate(docstring.splitlines(), element.body[0].lineno + offset):
                for span in _SPAN.finditer(line):
                    yield from self._words(path, number, span[2])

    def _imports(self, path: str, line: int, name: str) -> Iterator[Hit]:
        parts = name.removeprefix("p2pfl.").split(".")
        for candidate in {".".join(parts[:2]), ".".join(name.split(".")[:2])}:
            if module := self._dotted.get(candidate):
                yield Hit(path, line, "api.modules", module, self._names.api.modules[module])

    def _references(self, path: str, text: str, offset: int = 0) -> Iterator[Hit]:
        for number, line in enumerate(text.splitlines(), offset + 1):
            for reference in self._paths.finditer(line):
                yield Hit(path, number, "api.modules", reference[1], self._names.api.modules[reference[1]])

    def _words(self, path: str, line: int, text: str) -> Iterator[Hit]:
        """Yield retired identifiers and modules in a fragment of code, such as a span."""
        for word in _WORD.findall(text):
            if word in self._names.api.identifiers:
                yield Hit(path, line, "api.identifiers", word, self._names.api.identifiers[word])
        for dotted in re.findall(r"[A-Za-z_]\w*(?:\.\w+)+", text):
            yield from self._imports(path, line, dotted)


def _pattern(names: Names, form: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern for any of the names, the longest first; it matches nothing if there are none."""
    choices = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(form.format(choices or r"(?!)"), flags)


def _identifiers(element: ast.AST) -> Iterator[str]:
    """Yield the identifiers of one element itself, not of its children."""
    match element:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield from name.split(".")
            if other:
                yield other
        case ast.MatchClass(kwd_attrs=names):
            yield from names
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name


def _members(element: ast.ClassDef) -> Iterator[str]:
    """Yield the methods and fields that a class defines in its body, and the attributes that it sets on itself."""
    for child in element.body:
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _keys(table: Any) -> Iterator[str]:
    """Yield the keys of a TOML table and of the tables in it."""
    if isinstance(table, dict):
        for key, value in table.items():
            yield key
            yield from _keys(value)
    elif isinstance(table, list):
        for value in table:
            yield from _keys(value)


def search_tree(root: Path = ROOT, names: RetiredNames | None = None) -> list[Hit]:
    """Search every Python, Markdown and TOML file and every script below a root, except the files in PASSED."""
    files = {name: root / name for name in find_files(root)}
    files |= {path.relative_to(root).as_posix(): path for path in root.rglob("*.toml") if _is_ours(path.relative_to(root))}
    scripts = {f"{top}/{path.name}" for top in SCRIPTS for path in (root / top).glob("*") if path.is_file()}
    search = Search(load_names() if names is None else names, frozenset(name for name in files if name.endswith(".py")))
    kinds = {".py": search.python, ".md": search.markdown, ".toml": search.toml}
    hits = {
        hit
        for name in {*files, *scripts}
        if name not in PASSED
        for hit in kinds.get(Path(name).suffix, search.script)(name, (root / name).read_text(encoding="utf-8"))
    }
    return sorted(hits)


def enforced_findings(root: Path = ROOT) -> list[Finding]:
    """Return the hits of a tree as findings; none unless the list is enforced."""
    names = load_names()
    return [hit.finding() for hit in search_tree(root, names)] if names.enforced else []


def _is_ours(path: Path) -> bool:
    return not any(part.startswith(".") or part in ("_build", "runs", "dist") for part in path.parts)


def main() -> int:
    """Print the hits of this tree, or their number by name."""
    parser = argparse.ArgumentParser(prog="python -m scripts.tools.retired_names", description="Search for retired names.")
    parser.add_argument("--count", action="store_true", help="print the number of hits of each name")
    hits = search_tree()
    if parser.parse_args().count:
        for (scope, name), count in Counter((hit.scope, hit.name) for hit in hits).most_common():
            print(f"{count:5}  {scope:16} {name}")
    else:
        print(*(hit.finding() for hit in hits), sep="\n")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())
