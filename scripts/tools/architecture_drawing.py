"""Drawing of the architecture: packages as bands, subpackages as boxes, and imports as arrows.

`python -m scripts.tools.architecture_drawing` writes docs/images/architecture.svg, always the same bytes. Inside a
band, an arrow that follows from others is left out; between two bands there is one arrow, at the right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import PurePosixPath
from typing import NamedTuple

import networkx as nx

from scripts.tools.architecture import Rules, load_rules
from scripts.tools.findings import ROOT
from scripts.tools.source_tree import SourceTree

DRAWING = ROOT / "docs" / "images" / "architecture.svg"

WIDTH, MARGIN = 880, 20  # of a band in pixels, and around the drawing
HEADER, BOX, GAP, BETWEEN = 44, 46, 38, 26  # heights of a band's title and of a box; gaps between rows and bands
SPACE, LANE = 22, 20  # between boxes of a row, and between arrows at the right
CHARACTER = 8.6  # an upper bound of the width of a letter in a box
COLOURS = ("#dbe9f6", "#e2f0d9", "#fdebd3", "#f6e0ea", "#e8e3f4")

STYLE = (
    "text { font-family: 'DejaVu Sans', Verdana, Arial, sans-serif; fill: #1d2733; text-anchor: middle } "
    ".title { font-size: 17px; font-weight: bold; text-anchor: start } .name { font-size: 13px } "
    ".count { font-size: 11px; font-weight: normal; fill: #52606d } "
    ".box { fill: #ffffff; stroke: #52606d } .arrow { fill: none; stroke: #52606d; stroke-width: 1.3 } "
    ".between { fill: none; stroke: #1d2733; stroke-width: 1.8 }"
)


class Box(NamedTuple):
    """One subpackage: its place in pixels, and the number of its modules."""

    name: str
    modules: int
    x: float
    y: float
    width: float


class Band(NamedTuple):
    """One package: its place in pixels, its boxes and the arrows between them by name."""

    name: str
    modules: int
    y: float
    height: float
    boxes: Mapping[str, Box]
    arrows: Iterable[tuple[str, str]]


def draw(tree: SourceTree, rules: Rules) -> str:
    """Return the drawing of a tree as SVG."""
    within, between = _arrows(tree, rules)
    bands: list[Band] = []
    y = float(MARGIN)
    for package in reversed([package for package in rules.packages if package in tree.packages]):
        bands.append(_band(package, tree, within[package], y))
        y += bands[-1].height + BETWEEN
    height = y - BETWEEN + MARGIN
    width = MARGIN + WIDTH + LANE * (len(between) + 1) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}">',
        "<title>Packages and subpackages of p2pfl; arrows are imports</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L10 5 L0 10 z" fill="#1d2733"/></marker></defs>',
        f'<rect width="{width}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    for band, colour in zip(bands, COLOURS * len(bands), strict=False):
        parts += _draw_band(band, colour)
    parts += _draw_between(bands, between)
    return "\n".join([*parts, "</svg>", ""])


def _arrows(tree: SourceTree, rules: Rules) -> tuple[dict[str, nx.DiGraph[str]], list[tuple[str, str]]]:
    """Return the graph of the subpackages of each package, and pairs of an importing and an imported package."""
    passed = rules.exceptions.get("arrows", {})
    within: dict[str, nx.DiGraph[str]] = {package: nx.DiGraph() for package in tree.packages}
    for folder in tree.folders:
        if len(parts := PurePosixPath(folder).parts) == 2:
            within[parts[0]].add_node(parts[1])
    between = set()
    for source, _, target in tree.imports:
        ours, theirs = PurePosixPath(source).parts, PurePosixPath(target).parts
        if f"{source} -> {target}" in passed:
            continue
        if ours[0] != theirs[0]:
            between.add((ours[0], theirs[0]))
        elif len(ours) > 2 and len(theirs) > 2 and ours[1] != theirs[1]:
            within[ours[0]].add_edge(ours[1], theirs[1])
    return within, sorted(between)


def _band(package: str, tree: SourceTree, graph: nx.DiGraph[str], y: float) -> Band:
    counts = {
        name: sum(file.startswith(f"{package}/{name}/") and not file.endswith("/__init__.py") for file in tree.modules)
        for name in graph
    }
    rows = list(_rows(graph))
    boxes = {}
    for k, row in enumerate(rows):
        x = MARGIN + (WIDTH - _row_width(row)) / 2
        for name in row:
            boxes[name] = Box(name, counts[name], x, y + HEADER + k * (BOX + GAP), _box_width(name))
            x += boxes[name].width + SPACE
    modules = sum(file.startswith(f"{package}/") and not file.endswith("/__init__.py") for file in tree.modules)
    height = HEADER + (len(rows) * (BOX + GAP) - GAP + MARGIN if rows else 0)
    arrows = [(a, b) for a, b in sorted(_reduced(graph).edges) if boxes[a].y < boxes[b].y]
    return Band(package, modules, y, height, boxes, arrows)


def _reduced(graph: nx.DiGraph[str]) -> nx.DiGraph[str]:
    """Return the graph without the arrows that follow from others; a graph with a cycle is unchanged."""
    return nx.transitive_reduction(graph) if nx.is_directed_acyclic_graph(graph) else graph


def _rows(graph: nx.DiGraph[str]) -> Iterable[list[str]]:
    """Yield the subpackages row by row: each below all that import it, those in a cycle in the same row."""
    whole = nx.condensation(graph)
    depths: dict[int, int] = {}
    for group in nx.lexicographical_topological_sort(whole, key=lambda group: min(whole.nodes[group]["members"])):
        depths[group] = 1 + max((depths[above] for above in whole.predecessors(group)), default=-1)
    centres: dict[str, float] = {}
    for depth in range(max(depths.values(), default=-1) + 1):
        names = {name for group, at in depths.items() if at == depth for name in whole.nodes[group]["members"]}
        ordered = sorted(names, key=lambda name: (_mean(centres[a] for a in graph.predecessors(name) if a in centres), name))
        row: list[str] = []
        for name in ordered:
            if row and _row_width([*row, name]) > WIDTH - 2 * MARGIN:
                yield row
                row = []
            row.append(name)
        centres |= {name: (k + 0.5) / len(ordered) for k, name in enumerate(ordered)}
        yield row


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.5


def _box_width(name: str) -> float:
    return max(96.0, len(name) * CHARACTER + 24)


def _row_width(names: Iterable[str]) -> float:
    widths = [_box_width(name) for name in names]
    return sum(widths) + SPACE * (len(widths) - 1)


def _draw_band(band: Band, colour: str) -> list[str]:
    direct = band.modules - sum(box.modules for box in band.boxes.values())
    about = _plural(band.modules) + (f", {direct} of them outside the subpackages" if band.boxes and direct else "")
    parts = [
        f'<rect x="{MARGIN}" y="{band.y:.0f}" width="{WIDTH}" height="{band.height:.0f}" rx="8" fill="{colour}"/>',
        f'<text class="title" x="{MARGIN + 16}" y="{band.y + 28:.0f}">{escape(band.name)}'
        f'<tspan class="count" dx="12">{about}</tspan></text>',
    ]
    for a, b in band.arrows:
        x1 = _port(band.boxes[a], [band.boxes[to] for at, to in band.arrows if at == a], band.boxes[b])
        x2 = _port(band.boxes[b], [band.boxes[at] for at, to in band.arrows if to == b], band.boxes[a])
        y1, y2 = band.boxes[a].y + BOX, band.boxes[b].y
        path = f"M{x1:.1f} {y1:.1f} C{x1:.1f} {y1 + GAP * 0.6:.1f} {x2:.1f} {y2 - GAP * 0.6:.1f} {x2:.1f} {y2:.1f}"
        parts.append(f'<path class="arrow" d="{path}" marker-end="url(#head)"><title>{a} imports {b}</title></path>')
    for box in band.boxes.values():
        centre = box.x + box.width / 2
        parts += [
            f'<rect class="box" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{BOX}" rx="5"/>',
            f'<text class="name" x="{centre:.1f}" y="{box.y + 20:.1f}">{escape(box.name)}</text>',
            f'<text class="count" x="{centre:.1f}" y="{box.y + 37:.1f}">{_plural(box.modules)}</text>',
        ]
    return parts


def _port(box: Box, others: Iterable[Box], other: Box) -> float:
    """Return the end on a box of its arrow to or from another box; the ends of all its arrows are side by side."""
    ordered = sorted(others, key=lambda each: (each.x + each.width / 2, each.name))
    return box.x + box.width * (ordered.index(other) + 1) / (len(ordered) + 1)


def _draw_between(bands: list[Band], between: list[tuple[str, str]]) -> list[str]:
    """Draw one arrow for each pair of packages, in lanes at the right of the bands, the shortest next to them."""
    place = {band.name: k for k, band in enumerate(bands)}
    arrows = sorted(between, key=lambda pair: (abs(place[pair[1]] - place[pair[0]]), place[pair[0]]))
    ends: dict[str, list[tuple[int, int]]] = {band.name: [] for band in bands}  # (up or down, arrow)
    for k, (a, b) in enumerate(arrows):
        down = 1 if place[a] < place[b] else -1
        ends[a].append((down, -down * k))
        ends[b].append((-down, down * k))
    heights = {
        (band.name, abs(k)): band.y + band.height * (at + 1) / (len(ends[band.name]) + 1)
        for band in bands
        for at, (_, k) in enumerate(sorted(ends[band.name]))
    }
    right = MARGIN + WIDTH
    parts = []
    for k, (a, b) in enumerate(arrows):
        path = f"M{right} {heights[a, k]:.1f} H{right + LANE * (k + 1)} V{heights[b, k]:.1f} H{right + 1}"
        parts.append(f'<path class="between" d="{path}" marker-end="url(#head)"><title>{a} imports {b}</title></path>')
    return parts


def _plural(modules: int) -> str:
    return f"{modules} module{'' if modules == 1 else 's'}"


def main() -> None:
    """Write the drawing of this tree."""
    DRAWING.parent.mkdir(parents=True, exist_ok=True)
    DRAWING.write_text(draw(SourceTree(), load_rules()), encoding="utf-8")
    print(f"wrote {DRAWING.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
