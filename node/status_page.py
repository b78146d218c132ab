"""What a node shows of itself over HTTP: a page that follows it, the same as JSON, and figures for Prometheus."""

from __future__ import annotations

from typing import Any

import msgspec

from node import metrics
from node.page import EXTRA, WEB, Page, Shown, asset
from node.status import StatusBoard
from p2pfl.errors import ConfigurationError

NEWEST = 50  # rounds that a page which follows the node asks for again and again

FILES = ("status.js", "live.js", "charts.js", "style.css", "status.css", "icon.svg")
ASSETS = {"/": "status.html"} | {f"/{name}": name for name in FILES}


def status_page(board: StatusBoard, host: str, port: int) -> Page:
    """Return the page of a node, to be started.

    It has / (for people), /status.json (what `p2pfl-node status --json` prints, as of now), /status.json?newest (the same
    with the newest rounds only) and /metrics.

    Raises:
        ConfigurationError: prometheus-client is missing.
    """
    try:
        metrics.text({})
    except ImportError as error:
        raise ConfigurationError(EXTRA) from error

    shown = {path: asset(WEB / name) for path, name in ASSETS.items()}
    shown["/status.json"] = Shown("application/json", lambda: _json(board.fresh()))
    shown["/status.json?newest"] = Shown("application/json", lambda: _json(_newest(board.fresh())))
    shown["/metrics"] = Shown(metrics.CONTENT_TYPE, lambda: metrics.text(board.fresh()))
    return Page(shown, host, port)


def _newest(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"history": state["history"][-NEWEST:]}


def _json(state: dict[str, Any]) -> bytes:
    """Return a status as JSON, with null for what is no number: browsers know no NaN."""
    return msgspec.json.encode(state, enc_hook=float)
