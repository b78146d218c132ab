"""Judges of the pages: reports and status pages at three widths, in light and dark, with and without scripts.

What axe-core leaves undecided is decided here: the contrast of texts in drawings and before partly covered backgrounds is
computed by the formula of WCAG 2.2 from the colour of the text and the pixels that Chromium paints behind it.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
from PIL import Image
from playwright.sync_api import Page
from pypdf import PdfReader

from scripts.tools.judges import Judge, Verdict, npm, run
from scripts.tools.judges.shown import WIDTHS, all_pages, browser_program, chromium, opened, reports, status_pages

WCAG = "wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"
ENOUGH, ENOUGH_LARGE = 4.5, 3.0  # WCAG 2.2, 1.4.3
MOST_TABS = 2000
PAINTED = "() => new Promise((painted) => requestAnimationFrame(() => requestAnimationFrame(painted)))"
"""Script that ends when the page has been painted once more."""


# ---- accessibility


def judge_accessibility() -> Verdict:
    """Run axe-core on every page at every width, and its rules on colours in both themes."""
    violations, looks, undecided = [], 0, 0
    with all_pages() as pages, chromium() as browser:
        for shown in pages:
            for width in WIDTHS:
                with opened(browser, shown, width) as page:
                    found = {"light": axe(page)}
                    page.emulate_media(color_scheme="dark")
                    page.evaluate(PAINTED)  # before that, axe-core may see texts of one theme on the other's background
                    found["dark"] = axe(page, only=["color-contrast", "link-in-text-block"])
                for theme, results in found.items():
                    where = f"{shown.name}, {width} px, {theme}"
                    looks += 1
                    violations += [f"{where}: {_of_axe(fault)}" for fault in results["violations"]]
                    for fault in results["incomplete"]:
                        if fault["id"] == "color-contrast":
                            undecided += len(fault["nodes"])
                        else:
                            violations.append(f"{where}: undecided: {_of_axe(fault)}")
    return Verdict(violations, f"{looks} views; {undecided:,} contrasts left to pages.contrast")


def _of_axe(fault: Mapping[str, Any]) -> str:
    return f"{fault['id']} at {len(fault['nodes'])} elements, such as {fault['nodes'][0]['html'][:90]}"


def axe(page: Page, only: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return what axe-core finds on an opened page: violations, and what it cannot decide (incomplete).

    Args:
        only: names of rules; by default those of WCAG 2.2 A and AA and its best practices.
    """
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    rules = {"runOnly": list(only or WCAG), "rules": {} if only else {"target-size": {"enabled": True}}}
    return dict(
        page.evaluate("(rules) => axe.run(document, { ...rules, resultTypes: ['violations', 'incomplete'] })", rules)
    )


# ---- contrast


def judge_contrast() -> Verdict:
    """Compute the contrast of every text of every page with what Chromium paints behind it."""
    violations, texts = [], 0
    with all_pages() as pages, chromium() as browser:
        for shown in pages:
            for width in WIDTHS:
                for dark in (False, True):
                    with opened(browser, shown, width, dark=dark) as page:
                        found = contrasts(page)
                    texts += len(found)
                    where = f"{shown.name}, {width} px, {'dark' if dark else 'light'}"
                    low = sorted((ratio, text) for ratio, least, text in found if ratio < least)
                    if low:
                        violations.append(f"{where}: {len(low)} texts, the lowest {low[0][0]:.2f}: {low[0][1]}")
    return Verdict(violations, f"{texts:,} texts")


def contrasts(page: Page) -> list[tuple[float, float, str]]:
    """Return the contrast of each text of an opened page, the least that WCAG 2.2 allows, and the text with its element.

    The background is the colour that most pixels of the text's box have without it.
    """
    texts = page.evaluate(Path(__file__).with_name("texts.js").read_text("utf-8").partition("\n")[2])
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    pixels = np.asarray(picture)
    found = []
    for text in texts:
        left, top, right, bottom = (round(edge) for edge in text["area"])
        behind = pixels[top:bottom, left:right].reshape(-1, 3)
        if not len(behind):
            continue
        colours, counts = np.unique(behind, axis=0, return_counts=True)
        background = colours[counts.argmax()].astype(float)
        ink = text["opacity"] * np.array(text["colour"], float) + (1 - text["opacity"]) * background
        large = text["size"] >= 24 or (text["bold"] and text["size"] >= 18.66)
        least = ENOUGH_LARGE if large else ENOUGH
        found.append((contrast(ink, background), least, f"{text['text']!r} in {text['of']}"))
    return found


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """Return the contrast ratio of two colours in sRGB, from 0 to 255 in each channel; WCAG 2.2, "contrast ratio"."""
    light = sorted(_luminance(colour / 255) + 0.05 for colour in (one, other))
    return light[1] / light[0]


def _luminance(colour: np.ndarray) -> float:
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


# ---- markup

EXCEPTED = {
    r"“paint-order”": "a property of SVG 2 that all browsers know and the checker's CSS does not",
    r"“background”: Cannot invoke": "a gradient in oklab of CSS Images 4, at which the checker's CSS fails",
    r"violates Content Security Policy": "the checker does not find the hashes of long scripts; Chromium runs them",
}
"""Messages of the Nu checker that are no violation, and the reason."""


def judge_markup() -> Verdict:
    """Check the HTML as it is served, and as it is after the scripts, with the Nu checker of the W3C."""
    jar = npm.package("vnu-jar") / "build" / "dist" / "vnu.jar"
    with tempfile.TemporaryDirectory() as folder, all_pages() as pages, chromium() as browser:
        files = {}
        for k, shown in enumerate(pages):
            with urlopen(shown.address) as answer:
                served = answer.read()
            with opened(browser, shown, WIDTHS[0]) as page:
                drawn = page.content().encode()
            for stage, content in (("served", served), ("drawn", drawn)):
                path = Path(folder, f"{k}-{stage}.html")
                path.write_bytes(content)
                files[path.name] = f"{shown.name}, {stage}"
        done = run("java", "-jar", str(jar), "--format", "gnu", *(str(Path(folder, name)) for name in files))
    violations, excepted = [], dict.fromkeys(EXCEPTED, 0)
    for line in done.stdout.splitlines():
        place, _, said = line.partition(" ")
        matching = next((pattern for pattern in EXCEPTED if re.search(pattern, line)), None)
        name = next((about for file, about in files.items() if file in place), None)
        if matching is not None:
            excepted[matching] += 1
        elif name is not None:
            violations.append(f"{name}: {said}")
        elif done.returncode and not files:
            violations.append(line)
    return Verdict(
        violations,
        f"{len(files)} documents",
        [f"{count} x {EXCEPTED[pattern]}" for pattern, count in excepted.items() if count],
    )


# ---- keyboard

CONTROLS = """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled)
  .map((one, k) => { one.dataset.judged = k; return one.outerHTML.slice(0, 80); })"""
FOCUSED = """() => { const one = document.activeElement, style = getComputedStyle(one);
  return [one.dataset.judged ?? null, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0]; }"""
SCROLLERS = """() => [...document.querySelectorAll("*")].filter((one) => {
    const style = getComputedStyle(one);
    return ["auto", "scroll"].includes(style.overflowX) && one.scrollWidth > one.clientWidth + 1
      && one.checkVisibility() && one.tabIndex < 0 && !one.querySelector("a[href], button, [tabindex='0']");
  }).map((one) => one.outerHTML.slice(0, 80))"""


def judge_keyboard() -> Verdict:
    """Press Tab through every page: each control gets a visible focus once, in order, and what scrolls can be reached."""
    violations, controls = [], 0
    with all_pages() as pages, chromium() as browser:
        for shown in pages:
            for width in (WIDTHS[0], WIDTHS[-1]):
                with opened(browser, shown, width) as page:
                    expected = page.evaluate(CONTROLS)
                    reached, faults = press_tab(page, len(expected))
                    faults += [f"cannot be scrolled by keyboard: {one}" for one in page.evaluate(SCROLLERS)]
                    faults += [f"not reached: {expected[k]}" for k in range(len(expected)) if k not in reached]
                controls += len(expected)
                violations += [f"{shown.name}, {width} px: {fault}" for fault in faults]
    return Verdict(violations, f"{controls} controls")


def press_tab(page: Page, count: int) -> tuple[list[int], list[str]]:
    """Press Tab until the focus leaves the page, and return the numbers of the controls that had it, and faults."""
    reached: list[int] = []
    faults: list[str] = []
    for _ in range(min(count + 1, MOST_TABS)):
        page.keyboard.press("Tab")
        number, visible = page.evaluate(FOCUSED)
        if number is None or (reached and int(number) == reached[0]):
            return reached, faults
        if int(number) < max(reached, default=-1):
            faults.append(f"the focus goes back from control {reached[-1]} to {number}")
        if not visible:
            faults.append(f"control {number} shows no focus")
        reached.append(int(number))
    return reached, faults


# ---- print, and without scripts

PAPER = 718  # CSS pixels between the margins of a sheet A4
ON_PAPER = """() => {
  const faults = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth + 1) faults.push(`${wide} px wide on ${innerWidth} px`);
  for (const one of document.querySelectorAll("details:not([open])"))
    faults.push(`closed: ${one.textContent.trim().slice(0, 40)}`);
  for (const one of document.querySelectorAll(".chart, figure > div:not([class])"))
    if (one.checkVisibility() && !one.querySelector("svg *, canvas, .empty")) faults.push("an empty figure");
  const scheme = getComputedStyle(document.documentElement).colorScheme;
  if (scheme !== "light") faults.push(`colours for ${scheme}`);
  return faults;
}"""


def judge_print() -> Verdict:
    """Print every page from the dark theme: light, open, no wider than the sheet, no figure empty; the PDF has the texts."""
    violations, sheets = [], 0
    with all_pages() as pages, chromium() as browser:
        for shown in pages:
            with opened(browser, shown, PAPER, dark=True) as page:
                headings = page.locator("h2:visible, figure h3:visible").all_inner_texts()
                page.emulate_media(media="print")
                page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
                faults = page.evaluate(ON_PAPER)
                margins: Any = dict.fromkeys(("left", "right", "top", "bottom"), "10mm")
                document = PdfReader(io.BytesIO(page.pdf(format="A4", margin=margins)))
            sheets += len(document.pages)
            words = _letters("".join(sheet.extract_text() for sheet in document.pages))
            faults += [f"not printed: {title}" for title in headings if _letters(title) not in words]
            violations += [f"{shown.name}: {fault}" for fault in faults]
    return Verdict(violations, f"{sheets} sheets")


def _letters(text: str) -> str:
    return re.sub(r"\W", "", unicodedata.normalize("NFKC", text))  # ligatures are several letters


def judge_without_scripts() -> Verdict:
    """Open every page without JavaScript: a report has its texts and tables, a status page says where its data is."""
    violations = []
    with all_pages() as pages, chromium() as browser:
        for shown in pages:
            for width in WIDTHS:
                with opened(browser, shown, width, scripts=False) as page:
                    if shown.name.startswith("report"):
                        wanted = [
                            "h1",
                            "dl.facts dd",
                            "noscript p.hint",
                            "#findings li",
                            "#table td",
                            "#scenario summary",
                            "#versions summary",
                        ]
                    else:
                        wanted = ["h1", "noscript a[href='status.json']"]
                    missing = [what for what in wanted if not page.locator(what).first.is_visible()]
                    empty = page.locator("section:visible:not(:has(table, p, ul, dl, pre, details))").count()
                violations += [f"{shown.name}, {width} px: no {what}" for what in missing]
                violations += [f"{shown.name}, {width} px: {empty} empty sections"] * bool(empty)
    return Verdict(violations, f"{len(WIDTHS) * (len(reports()) + 4)} views")


# ---- security policy

REQUIRED = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer and a part of their value: those of the OWASP Secure Headers Project that plain HTTP has."""

EVALUATE = """
const [folder, policy] = process.argv.slice(1);
const load = (name) => import(`${folder}/dist/${name}.js`);
const [{ CspParser }, { CspEvaluator }, { Version }] = await Promise.all(["parser", "evaluator", "csp"].map(load));
for (const found of new CspEvaluator(new CspParser(policy).csp, Version.CSP3).evaluate())
  console.log(JSON.stringify([found.severity, found.directive, found.description]));
"""
MAYBE = 50  # csp_evaluator: from this severity on, a finding is a hint for some sites

INJECTED = """() => { document.body.append(Object.assign(document.createElement("script"), { text: "window.injected = 1" }));
  document.body.insertAdjacentHTML("beforeend", '<img src="data:," onerror="window.injected = 2" style="position: fixed">');
  return new Promise((done) => setTimeout(() => done(window.injected ?? 0), 50)); }"""


def judge_policy() -> Verdict:
    """Check headers and Content-Security-Policy with csp_evaluator and in Chromium, which must block what is injected."""
    violations, policies = [], set()
    with status_pages() as pages:
        for path in ("", "status.js", "style.css", "status.json", "metrics", "nowhere"):
            violations += [f"status page, /{path}: {fault}" for fault in missing_headers(f"{pages[0].address}{path}")]
        with urlopen(pages[0].address) as answer:
            policies.add(answer.headers.get("Content-Security-Policy", ""))
    for shown in reports():
        text = Path(shown.address.removeprefix("file://")).read_text("utf-8")
        found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        policies.add(found[1] if found else "")
    for policy in policies:
        violations += [f"policy {policy[:60]!r}: {fault}" for fault in weaknesses(policy)]
    with all_pages() as pages, chromium() as browser:
        for shown in pages:
            said: list[str] = []
            with opened(browser, shown, WIDTHS[-1], problems=said) as page:
                for button in page.locator("button:visible").all()[:30]:
                    button.dispatch_event("click")
                violations += [f"{shown.name}: {problem}" for problem in said]
                if page.evaluate(INJECTED):
                    violations.append(f"{shown.name}: an injected script has run")
    return Verdict(violations, f"{len(policies)} policies, {len(REQUIRED)} headers")


def missing_headers(address: str) -> list[str]:
    """Return what an answer lacks of REQUIRED."""
    try:
        with urlopen(address) as answer:
            headers = answer.headers
    except HTTPError as error:
        headers = error.headers
    return [f"no {name} with {part}" for name, part in REQUIRED.items() if part not in headers.get(name, "")]


def weaknesses(policy: str) -> list[str]:
    """Return what csp_evaluator finds wrong with a policy, and each of its sources that is called unsafe."""
    folder = str(npm.package("csp_evaluator"))
    done = run("node", "--input-type=module", "--eval", EVALUATE, "--", folder, policy)
    if done.returncode:
        return [f"csp_evaluator failed: {done.stdout.strip().splitlines()[-1]}"]
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [f"{directive}: {said}" for severity, directive, said in findings if severity < MAYBE]
    return faults + [f"{source} is used" for source in re.findall(r"'unsafe-[\w-]+'", policy)]


# ----


def _browser() -> str:
    found = re.search(r"Chromium [\d.]+", run(browser_program(), "--version").stdout)
    return found[0] if found else "Chromium"


def _accessibility() -> str:
    script = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    return f"axe-core {script[:40].split('axe v')[1].split()[0]} in {_browser()}"


JUDGES = [
    Judge("accessibility", _accessibility, "WCAG 2.2 A and AA, and axe-core's best practices", judge_accessibility),
    Judge("contrast", _browser, "texts have the contrast of WCAG 2.2 AA to the pixels behind them", judge_contrast),
    Judge("markup", lambda: npm.version("vnu-jar"), "HTML and CSS, as served and as drawn", judge_markup),
    Judge("keyboard", _browser, "Tab reaches every control, in order and visibly, and what scrolls", judge_keyboard),
    Judge("print", _browser, "printed pages are light, open, complete and no wider than the sheet", judge_print),
    Judge(
        "without-scripts",
        _browser,
        "without JavaScript, a reader sees texts and tables, or where they are",
        judge_without_scripts,
    ),
    Judge(
        "policy",
        lambda: npm.version("csp_evaluator"),
        "headers, and a Content-Security-Policy without unsafe-",
        judge_policy,
    ),
]
