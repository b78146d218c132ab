"""HTTP endpoints of a node's status: a live page, the same data as JSON, and metrics for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2pfl.errors import ConfigurationError
from p2pfl.node.status import prometheus as metrics
from p2pfl.node.status.observer import StatusObserver
from p2pfl.node.status.status_file import encode
from p2pfl.protocols.addresses import is_loopback
from p2pfl.web.http_server import ASSETS, EXTRA, PageServer, Resource, asset

NEWEST = 50  # rounds that a live page requests repeatedly

OWN = Path(__file__).parent / "web"
FILES = {
    "/": OWN / "status.html",
    "/status.js": OWN / "status.js",
    **{f"/{name}": ASSETS / name for name in ("live.js", "charts.js", "style.css", "status.css", "icon.svg")},
}


def status_page(status_observer: StatusObserver, host: str, port: int) -> PageServer:
    """Return the page of a node; the caller starts it.

    It has / (for people), /status.json (the current output of `p2pfl-node status --json`), /status.json?newest (the
    same with the newest rounds only) and /metrics.

    Raises:
        ConfigurationError: prometheus-client is missing.
    """
    try:
        metrics.text({})
    except ImportError as error:
        raise ConfigurationError(EXTRA) from error

    shown = {path: asset(file) for path, file in FILES.items()}
    shown["/status.json"] = Resource("application/json", lambda: encode(status_observer.fresh()))
    shown["/status.json?newest"] = Resource("application/json", lambda: encode(_newest(status_observer.fresh())))
    shown["/metrics"] = Resource(metrics.CONTENT_TYPE, lambda: metrics.text(status_observer.fresh()))
    return PageServer(shown, host, port)


def open_to_others(host: str) -> bool:
    """Return whether other machines can read a page at this host."""
    return not is_loopback(host)


def _newest(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"history": state["history"][-NEWEST:]}
