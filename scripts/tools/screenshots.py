"""Pages in Chromium, for the pictures of the documentation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright


@contextmanager
def open_page(address: str, width: int, height: int) -> Iterator[Page]:
    """Open a page in light colours, in a window of some CSS pixels."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        page.goto(address)
        yield page
        browser.close()
