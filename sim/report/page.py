"""Put a report's parts, figures, scripts and styles into one HTML file that loads nothing.

Parts in HTML are readable without JavaScript. sim/report/assets/report.js draws the figures in the page, with the
charts.js that all pages share. Their data is the payload: JSON, deflated, base64. A Content-Security-Policy in the file
allows only the project's own scripts and styles, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from p2pfl._util.http_server import ASSETS

# page.html sets the place of each part on the page; a missing or empty part leaves no gap.
PARTS = ("facts", "findings", "table", "differences", "pictures", "scenario", "versions")
_TITLES = {
    "findings": "Findings",
    "table": "Results in numbers",
    "differences": "Differences",
    "pictures": "Pictures",
    "scenario": "Resolved scenario",
    "versions": "Versions",
}
_FOLDED = ("scenario", "versions")  # long parts for reference: closed on a screen, open on paper


def render(title: str, payload: Mapping[str, Any], parts: Mapping[str, str]) -> str:
    """Return the whole page.

    Args:
        title: plain text.
        payload: data of the figures: numbers, texts, lists, mappings, and NumPy arrays of numbers, which are packed
            (see pack). A float that is not finite becomes null.
        parts: blocks of HTML by their names in PARTS, escaped by the caller: facts (a dl for the head), findings (p or
            ul), table and differences (each one or more tables), pictures (figures of SVG), scenario (a pre), versions
            (a dl).

    Raises:
        KeyError: there is no place for a part of that name.
    """
    if unknown := sorted(set(parts) - set(PARTS)):
        raise KeyError(f"unknown parts {', '.join(unknown)}; known: {', '.join(PARTS)}")
    charts, report = (ASSETS / "charts.js").read_text("utf-8"), _asset("p2pfl.sim.report", "assets/report.js")
    style = (ASSETS / "style.css").read_text("utf-8") + _asset("p2pfl.sim.report", "assets/report.css")
    policy = (
        f"default-src 'none'; script-src {_source(charts)} {_source(report)}; style-src {_source(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    blocks = {name: _block(name, parts.get(name, "")) for name in PARTS}
    return Template(_asset("p2pfl.sim.report", "assets/page.html")).substitute(
        blocks,
        title=html.escape(title),
        policy=policy,
        style=style,
        charts=charts,
        report=report,
        payload=deflate(payload),
    )


def deflate(payload: Mapping[str, Any]) -> str:
    """Return the payload in the format of the page: JSON, deflated (zlib, RFC 1950), base64."""
    text = json.dumps(_plain(payload), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def pack(array: np.ndarray) -> dict[str, str]:
    """Return an array of numbers of any shape as {type: base64 of its values in C order, little endian}.

    The type is the smallest that holds all values: u8, u16, i32; f32 for floats; f64 for whole numbers beyond these.
    """
    values = np.ravel(array)
    if values.dtype.kind == "f":
        finite = values[np.isfinite(values)]
        exact = not np.any(np.abs(finite) > 2**24) or not np.all(finite == np.floor(finite))
        kind, dtype = ("f32", "<f4") if exact else ("f64", "<f8")
    else:
        least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        fits = [("u8", "<u1", 0, 2**8), ("u16", "<u2", 0, 2**16), ("i32", "<i4", -(2**31), 2**31)]
        found = (each[:2] for each in fits if each[2] <= least and most < each[3])
        kind, dtype = next(found, ("f64", "<f8"))
    return {kind: base64.b64encode(values.astype(dtype).tobytes()).decode()}


@dataclass(frozen=True)
class Hundredths:
    """Numbers from -1 to 1 of any shape, rounded to two decimals: one byte each."""

    values: np.ndarray

    def to_payload(self) -> dict[str, str]:
        rounded = np.where(np.isfinite(self.values), np.rint(100 * self.values), -128)
        return {"i8": base64.b64encode(rounded.astype("<i1").tobytes()).decode()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Hundredths):
        return value.to_payload()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.ndim:
        return pack(value)
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _block(name: str, content: str) -> str:
    if not content or name == "facts":
        return content
    title = _TITLES[name]
    if name in _FOLDED:
        return f'<section id="{name}"><details><summary><h2>{title}</h2></summary>{content}</details></section>'
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>'


def _asset(package: str, path: str) -> str:
    return files(package).joinpath(path).read_text("utf-8")


def _source(text: str) -> str:
    """Return the source expression of a Content-Security-Policy for an inline script or style with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
