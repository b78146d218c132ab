"""Modules of the product and the imports between them, read from the source without importing it.

The name of a module is its file relative to the root: `node/peering/peer.py`. Folders are read once, even if one
package holds links to the others (`p2pfl/node -> ../node`). A module is found under every import name of its package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from scripts.tools.findings import ROOT

# Folder at the root: the import names of its modules.
PACKAGES: Mapping[str, Sequence[str]] = {
    "p2pfl": ("p2pfl",),
    "protocols": ("p2pfl.protocols", "protocols"),
    "topologies": ("p2pfl.topologies", "topologies"),
    "node": ("p2pfl.node", "node"),
    "sim": ("p2pfl.sim", "sim"),
}


class Import(NamedTuple):
    """Import of one module of the product by another, with its line."""

    source: str
    line: int
    target: str


class SourceTree:
    """The product's modules below a root.

    Args:
        root: the folder that holds the packages.
        packages: for each package's folder, the dotted names under which it is imported; a missing folder is ignored.
    """

    def __init__(self, root: Path = ROOT, packages: Mapping[str, Sequence[str]] = PACKAGES) -> None:
        self.root = root.resolve()
        self.packages = {folder: names for folder, names in packages.items() if (self.root / folder).is_dir()}

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """Return the parsed modules by file, in alphabetical order."""
        found = {path.relative_to(self.root).as_posix(): path for folder in self.packages for path in self._files(folder)}
        return {name: ast.parse(found[name].read_text(encoding="utf-8")) for name in sorted(found)}

    def _files(self, folder: str) -> Iterator[Path]:
        top = self.root / folder
        for path in top.rglob("*.py"):
            parents = [top.joinpath(*path.relative_to(top).parts[:k]) for k in range(1, len(path.relative_to(top).parts))]
            if not any(parent.is_symlink() or parent.name == "__pycache__" for parent in parents):
                yield path

    @cached_property
    def folders(self) -> list[str]:
        """Return the folders that hold modules, with their parents inside the packages, in alphabetical order."""
        found = {str(parent) for name in self.modules for parent in PurePosixPath(name).parents}
        return sorted(found - {"."})

    def children(self, folder: str) -> list[str]:
        """Return the modules directly in a folder, without its `__init__`."""
        return [
            name
            for name in self.modules
            if PurePosixPath(name).parent == PurePosixPath(folder) and not name.endswith("/__init__.py")
        ]

    @cached_property
    def _by_name(self) -> dict[str, str]:
        names = {}
        for file in self.modules:
            folder, _, rest = file.removesuffix(".py").removesuffix("/__init__").partition("/")
            for alias in self.packages[folder]:
                names[f"{alias}.{rest.replace('/', '.')}".rstrip(".")] = file
        return names

    @cached_property
    def imports(self) -> list[Import]:
        """Return imports between modules: at the top, in a function, for type checkers, or by a literal name."""
        return sorted(
            {
                Import(source, line, target)
                for source, module in self.modules.items()
                for line, target in self._targets(source, module)
                if target != source
            }
        )

    def _targets(self, source: str, module: ast.Module) -> Iterator[tuple[int, str]]:
        for element in ast.walk(module):
            for name in imported_names(element, self._package_of(source)):
                if file := self._resolve(name):
                    yield getattr(element, "lineno", 0), file

    def _package_of(self, file: str) -> str:
        """Return the dotted name from which relative imports in a module start."""
        folder, _, rest = file.partition("/")
        return ".".join([self.packages[folder][0], *PurePosixPath(rest).parent.parts])

    def _resolve(self, name: str) -> str | None:
        """Return the module that an imported dotted name refers to, or that contains its target."""
        while name:
            if name in self._by_name:
                return self._by_name[name]
            name = name.rpartition(".")[0]
        return None


def imported_names(element: ast.AST, package: str) -> Iterator[str]:
    """Yield the dotted names that a statement or a call of `import_module` imports, relative to a package."""
    match element:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = ".".join(package.split(".")[: len(package.split(".")) - level + 1]) if level else ""
            start = ".".join(part for part in (base, module) if part)
            yield from (f"{start}.{alias.name}" for alias in names)
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]
        ):
            yield name
