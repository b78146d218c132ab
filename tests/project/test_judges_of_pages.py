"""Judges of pages and of the wire find planted faults, and pass what is right."""

from types import SimpleNamespace

import pytest

from p2pfl._util import http_server
from p2pfl._util.http_server import PageServer, Resource, in_thread
from tests.support.browser import needs_chromium

pages = pytest.importorskip("scripts.tools.judges.pages", exc_type=ImportError)
shown = pytest.importorskip("scripts.tools.judges.shown", exc_type=ImportError)
wire = pytest.importorskip("scripts.tools.judges.wire", exc_type=ImportError)

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Page</title>
<style>body {{ color: {ink}; background: #fff }}</style></head>
<body><main><h1>Page</h1><label>Run <select><option>first</option></select></label></main></body></html>"""


@pytest.fixture(scope="module")
def chromium():
    with shown.chromium() as started:
        yield started


@pytest.fixture
def opened(chromium, tmp_path):
    """Function that opens HTML in Chromium."""
    contexts = []

    def open_page(text):
        path = tmp_path / "page.html"
        path.write_text(text)
        contexts.append(shown.opened(chromium, shown.Shown("page", path.as_uri(), "body"), 390))
        return contexts[-1].__enter__()

    yield open_page
    for context in contexts:
        context.__exit__(None, None, None)


@needs_chromium
def test_axe_finds_control_without_label(opened):
    good = PAGE.format(ink="#000")
    assert pages.axe(opened(good))["violations"] == []
    found = pages.axe(opened(good.replace("<label>", "<p>").replace("</label>", "</p>")))["violations"]
    assert [fault["id"] for fault in found] == ["select-name"]


@needs_chromium
@pytest.mark.parametrize(("ink", "ratio"), [("#000", 21.0), ("#777", 4.478)])
def test_contrast_is_that_of_text_and_pixels(opened, ink, ratio):
    (title, *_) = pages.contrasts(opened(PAGE.format(ink=ink)))
    assert title == (pytest.approx(ratio, abs=0.01), pages.ENOUGH_LARGE, "'Page' in h1")


@needs_chromium
def test_keyboard_judge_finds_hidden_focus(opened):
    page = opened(PAGE.format(ink="#000") + "<style>select { outline: none !important }</style>")
    count = len(page.evaluate(pages.CONTROLS))
    assert pages.press_tab(page, count) == ([0], ["control 0 shows no focus"])


@pytest.mark.slow
@pytest.mark.parametrize("removed", [None, *pages.REQUIRED])
def test_policy_judge_finds_removed_header(monkeypatch, removed):
    monkeypatch.setattr(http_server, "HEADERS", {k: v for k, v in http_server.HEADERS.items() if k != removed})
    with in_thread(PageServer({"/": Resource("text/plain", lambda: b"hello")}, "127.0.0.1", 0)) as address:
        faults = pages.missing_headers(address)
    assert [fault.split()[1] for fault in faults] == ([removed] if removed else [])


@pytest.mark.slow
def test_metrics_judge_finds_sample_that_is_there_twice(monkeypatch):
    assert wire.judge_metrics().violations == []
    good = wire.text
    monkeypatch.setattr(wire, "text", lambda state: good(state) + b"p2pfl_round 3\n")
    assert "1 members: p2pfl_round twice" in wire.judge_metrics().violations


def test_judge_without_its_program_cannot_run(monkeypatch):
    monkeypatch.setattr("scripts.tools.judges.shutil", SimpleNamespace(which=lambda *_, **__: None))
    with pytest.raises(wire.CannotRunError, match="openssl is not installed"):
        wire.judge_alert()
