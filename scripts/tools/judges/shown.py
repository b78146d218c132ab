"""Pages for the judges: reports of shipped scenarios, the status page of nodes with few and many peers, and Chromium."""

from __future__ import annotations

import atexit
import functools
import math
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from p2pfl._util.http_server import in_thread
from p2pfl.node.status.endpoints import status_page
from scripts.tools.judges import CannotRunError, find_program, run

SCENARIOS = {"byzantine-personal": "0:2", "fedpref-dst": "0:2", "praffl-heterogeneity": "0:1", "topology-study": "0:1"}
"""Shipped scenarios whose reports have all sections and all kinds of figures, and their seeds: two have bands."""

MEMBERS = 1, 3, 20, 300
WIDTHS = 390, 768, 1280  # CSS pixels
HEIGHT = 900
ROUNDS = 20


@dataclass(frozen=True)
class Shown:
    """A page that a judge opens.

    Attributes:
        name: "report of topology-study", or "status page of 20 members".
        address: its URL.
        ready: selector of an element that is there when the page has been drawn.
    """

    name: str
    address: str
    ready: str


@functools.cache
def reports() -> tuple[Shown, ...]:
    """Run the scenarios in their short form, and return their reports.

    Raises:
        CannotRunError: a scenario failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="p2pfl-judges-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    found = []
    for scenario, seeds in SCENARIOS.items():
        options = ["--set", "form=smoke", "--seeds", seeds, "--out", str(folder / scenario)]
        done = run("p2pfl-sim", "run", scenario, "--quiet", *options)
        if done.returncode:
            raise CannotRunError(f"{scenario} failed: {done.stdout.strip().splitlines()[-1]}")
        address = (folder / scenario / "report.html").as_uri()
        found.append(Shown(f"report of {scenario}", address, "html[data-ready]"))
    return tuple(found)


@contextmanager
def status_pages() -> Iterator[tuple[Shown, ...]]:
    """Serve the status pages of nodes in federations of MEMBERS."""
    with ExitStack() as stack:
        pages = [status_page(_Observer(status(members)), "127.0.0.1", 0) for members in MEMBERS]  # type: ignore[arg-type]
        addresses = [stack.enter_context(in_thread(page)) for page in pages]
        yield tuple(
            Shown(f"status page of {members} members", address, "#link.good")
            for members, address in zip(MEMBERS, addresses, strict=True)
        )


@contextmanager
def all_pages() -> Iterator[tuple[Shown, ...]]:
    """Yield the reports and the status pages."""
    with status_pages() as pages:
        yield *reports(), *pages


class _Observer:
    """Stands for p2pfl.node.status.observer.StatusObserver: a status that does not change."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = state

    def fresh(self) -> Mapping[str, Any]:
        return self.state


def status(members: int) -> dict[str, Any]:
    """Return the status of a node after ROUNDS, as p2pfl-node status --json does; some of many peers are in trouble."""
    draws = random.Random(members)
    names = [f"node-{k:03d}" for k in range(1, members)]
    states = ["connected"] * 6
    if members > 10:
        states += ["behind", "suspected", "not connected", "connecting", "left out", "done"]
    return {
        "name": "alice",
        "started": 1.0,
        "federation": "7f3a9c2e",
        "task": "digits",
        "policy": "random",
        "version": "1",
        "state": "running",
        "metric": "accuracy",
        "reported_stage": "merged",
        "round": ROUNDS,
        "rounds": 2 * ROUNDS,
        "history": [_row(round, names, draws) for round in range(1, ROUNDS + 1)],
        "best": {"round": ROUNDS, "validation": 0.87},
        "peers": [_peer(name, states[k % len(states)]) for k, name in enumerate(names)],
        "traffic": {
            "sent": {"models": 60, "update": 790_000, "control": 8_000},
            "received": {"models": 60, "update": 812_000, "control": 9_000},
        },
        "rejected": {"unknown sender": 3} if names else {},
        "budget": {"models": {"limit": 4, "used": 3}},
        "refused_by_budget": 2 if names else 0,
        "disk": "no space left on device" if members > 100 else "",
        "broker": "the broker does not answer" if members > 100 else "",
        "deadlines_expired": 1,
    }


def _row(round: int, names: list[str], draws: random.Random) -> dict[str, Any]:
    chosen = draws.sample(names, min(3, len(names)))
    weights = {"alice": 0.4 if chosen else 1.0} | {name: 0.6 / len(chosen) for name in chosen}
    score = 0.3 + 0.6 * (1 - math.exp(-round / 6))
    stages = {
        "trained": {"validation": score + 0.02, "test": score},
        "merged": {"validation": score, "test": score - 0.01},
    }
    cost = {"bytes_in": 39_400 + draws.randrange(320), "bytes_out": 39_400 + draws.randrange(320), "seconds": 0.4}
    return {"round": round, "weights": weights, "models": len(chosen), "stages": stages} | stages["merged"] | cost


def _peer(name: str, state: str) -> dict[str, Any]:
    well = state in ("connected", "done")
    return {
        "name": name,
        "state": state,
        "reason": "" if well else "cannot reach 192.0.2.31:4101: connection refused",
        "round": ROUNDS,
        "link": "direct" if well else "",
        "staleness": 0.4,
        "bytes_in": 812_000,
        "bytes_out": 790_000,
        "score": 12 if state == "left out" else 0,
        "penalties": {"refused models": 2} if state == "left out" else {},
    }


def browser_program() -> str:
    """Return the path of Chromium.

    Raises:
        CannotRunError: it is not installed.
    """
    try:
        return find_program("chromium")
    except CannotRunError:
        return find_program("chromium-browser")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium; see browser_program."""
    program = browser_program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser,
    shown: Shown,
    width: int,
    *,
    dark: bool = False,
    scripts: bool = True,
    problems: list[str] | None = None,
) -> Iterator[Page]:
    """Open a page and wait until it has been drawn; without scripts, until it has been loaded.

    Args:
        problems: receives the warnings and errors of the page's console.
    """
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHT},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        java_script_enabled=scripts,
    )
    try:
        page = context.new_page()
        if problems is not None:
            page.on("console", lambda said: problems.append(said.text) if said.type in ("warning", "error") else None)
            page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(shown.address)
        if scripts:
            page.wait_for_selector(shown.ready, state="attached")
            page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        yield page
    finally:
        context.close()
