"""Headless Chromium for tests of pages; it records the requests and errors of a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

DESKTOP, PHONE = (1280, 900), (390, 844)  # CSS pixels

# Prevent requests of Chromium itself, for example for updates.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]


def needs_chromium(test):
    """Mark a test that starts Chromium."""
    missing = "Chromium is not installed" if CHROMIUM is None else "needs the extra test-all"
    return pytest.mark.slow(pytest.mark.skipif(CHROMIUM is None or find_spec("playwright") is None, reason=missing)(test))


@dataclass
class Seen:
    """Record of a page: the addresses that it requested, and the warnings and errors on its console."""

    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@contextmanager
def browser() -> Iterator[object]:
    """Start Chromium; the value is playwright's Browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def page(chromium, size=DESKTOP, dark=False):
    """Open an empty page; the values are playwright's Page and a record of its activity."""
    context = chromium.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light", accept_downloads=True
    )
    seen = Seen()
    opened = context.new_page()
    opened.on("request", lambda request: seen.requests.append(request.url))
    opened.on("pageerror", lambda error: seen.problems.append(str(error)))
    opened.on(
        "console", lambda message: seen.problems.append(message.text) if message.type in ("warning", "error") else None
    )
    try:
        yield opened, seen
    finally:
        context.close()


COUNT = """() => [...document.querySelectorAll('figure')].map(figure => ({
    id: figure.id, empty: !!figure.querySelector('.empty'),
    drawn: figure.querySelectorAll('svg *, canvas').length }))"""


def opened_report(chromium, path, **options):
    """Open a report and return its contents."""
    with page(chromium, **options) as (shown, seen):
        shown.goto(path.as_uri())
        shown.wait_for_selector("html[data-ready]", state="attached")
        return SimpleNamespace(
            figures=shown.evaluate(COUNT),
            requests=seen.requests,
            problems=seen.problems,
            wide=shown.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"),
            marks=shown.evaluate("document.querySelectorAll('img, b, script:not([id]):not(:empty)').length"),
            text=shown.evaluate("document.body.innerText"),
        )
