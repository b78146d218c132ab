"""Report page in a browser: figures are drawn, filtered, hovered and downloaded, and nothing is loaded."""

import csv

import numpy as np
import pytest

from p2pfl.sim.report import page as report_page
from tests.support import browser

pytestmark = pytest.mark.slow

ROUNDS, NODES = 6, 4
FIGURES = ("curve", "cost", "sent", "nodes", "over-time", "summed", "drawing", "grid")
HOSTILE = "</script><img src=x onerror=alert(1)>"


def payload(names=("first run", "second run")):
    first, second = names
    rounds = np.arange(1, ROUNDS + 1)
    sent = {first: rounds * 2_000_000, second: rounds * 1_000_000}
    accuracy = {first: 0.5 + rounds / 100, second: 0.6 + rounds / 100}
    views = [
        {"label": "rounds", "unit": "", "x": dict.fromkeys(names, rounds)},
        {"label": "bytes sent", "unit": "B", "x": sent},
    ]
    lines = {"kind": "lines", "id": "curve", "title": "Curve", "note": "Over nodes.", "views": views, "y_label": "accuracy"}
    lines |= {"y": accuracy, "low": {first: accuracy[first] - 0.01}, "high": {first: accuracy[first] + 0.01}, "target": 0.55}
    points = [
        {"run": first, "x": 2e6, "y": 0.8, "y_dev": 0.01, "label": first, "on_front": True},
        {"run": second, "x": 6e6, "y": 0.9, "label": second, "on_front": True},
    ]
    scatter = {"kind": "scatter", "id": "cost", "title": "Cost", "note": "", "x_label": "bytes sent", "x_unit": "B"}
    scatter |= {"x_log": False, "y_label": "accuracy", "points": points}
    bars = {"kind": "bars", "id": "sent", "title": "Sent", "note": "", "x_label": "bytes", "unit": "B"}
    bars |= {"missing": {second: "by 1 of 4 seeds"}}
    bars |= {"runs": {first: {"parts": {"rounds": 1500.0, "preparation": 500.0}}, second: None}, "limit": {first: 3000}}
    strips = {
        first: {"values": np.array([0.1, 0.2, 0.3, 0.4]), "worst": np.array([True, False, False, False]), "mean": 0.25},
        second: {"values": np.array([0.5, 0.6, 0.7, np.nan]), "worst": np.array([True, False, False, False]), "mean": 0.6},
    }
    nodes = {"kind": "distribution", "id": "nodes", "title": "Nodes", "note": "", "x_label": "accuracy", "runs": strips}
    square = np.arange(NODES * NODES).reshape(NODES, NODES)
    matrix = {"kind": "matrix", "n": NODES, "x_label": "learned from", "y_label": "node", "unit": "times", "note": ""}
    frames = {name: [{"label": f"rounds {k}", "values": square + k, "max": 20} for k in (1, 2)] for name in names}
    once = {name: [{"label": "all", "values": square * 0.5, "max": 7.5}] for name in names}
    groups = [{"label": "left", "count": 2}, {"label": "right", "count": 2}]
    over_time = matrix | {"id": "over-time", "title": "Over time", "frames": frames, "groups": groups}
    summed = matrix | {"id": "summed", "title": "Summed", "frames": once, "labels": ["ann", "bob", "cy", "di"]}
    network = {"kind": "network", "id": "drawing", "title": "Drawing", "note": "", "value_label": "accuracy"}
    places = {"x": np.array([0.0, 1, 1, 0]), "y": np.array([0.0, 0, 1, 1]), "label": ["ann", "bob", "cy", "di"]}
    network |= {"nodes": places | {"group": ["left", "left", "right", "right"]}, "edges": [[0, 1], [1, 2]]}
    network["runs"] = {
        name: {"value": np.array([0.1, 0.2, 0.3, 0.4]), "links": [[1, 0, 0.75], [2, 0, 0.25]]} for name in names
    }
    heat = {
        "kind": "heatmap",
        "id": "grid",
        "title": "Grid",
        "note": "",
        "rows": ["ring", "torus"],
        "columns": ["4", "none"],
    }
    heat |= {"x_label": "budget", "y_label": "topology", "label": "bytes", "unit": "B", "log": True, "missing": "never"}
    cells = [{"row": 0, "column": 0, "value": 2e6, "dev": 1e5, "best": True}, {"row": 1, "column": 1, "value": 9e8}]
    heat["cells"] = dict(zip(names, cells, strict=True))
    figures = [lines, scatter, bars, nodes, over_time, summed, network, heat]
    sections = [{"id": "all", "title": "All", "text": ["One sentence."], "figures": figures}]
    return {"runs": list(names), "sections": sections}


def single(figure):
    return payload() | {"sections": [{"id": "one", "title": "One", "text": [], "figures": [figure]}]}


@pytest.fixture(scope="module")
def chromium():
    if browser.CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with browser.browser() as started:
        yield started


@pytest.fixture
def opened(chromium, tmp_path):
    """Function that opens a page of a payload and returns playwright's Page and its recorded activity."""
    contexts = []

    def open_page(data=None, parts=None, title="A report", before="", **how):
        path = tmp_path / "report.html"
        path.write_text(report_page.render(title, data or payload(), parts or {}), "utf-8")
        contexts.append(browser.page(chromium, **how))
        page, seen = contexts[-1].__enter__()
        page.set_default_timeout(5000)
        if before:
            page.add_init_script(before)
        page.goto(path.as_uri())
        ready(page)
        return page, seen

    yield open_page
    for context in contexts:
        context.__exit__(None, None, None)


def ready(page):
    page.wait_for_selector("html[data-ready]", state="attached")  # wait_for_function would need eval, which the page forbids


def downloaded(page, figure):
    with page.expect_download() as waiting:
        page.click(f"#{figure} .csv")
    assert waiting.value.suggested_filename == f"{figure}.csv"
    with waiting.value.path().open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def describe(page, figure):
    """Return the text of a figure, its selection, and the accessible names of its drawings."""
    names = page.eval_on_selector_all(f"#{figure} [role=img]", "all => all.map(one => one.getAttribute('aria-label'))")
    return page.inner_text(f"#{figure}") + " ".join(names)


def hover(page, figure, across, down, drawing=0):
    place = page.locator(f"#{figure} .drawing").nth(drawing)
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    return page.inner_text(".tip:visible")


def spot(page, figure, selector, k=0):
    """Return the position of a mark in its drawing, as fractions of its width and height."""
    return page.evaluate(
        """([figure, selector, k]) => {
            const mark = document.querySelectorAll(`#${figure} ${selector}`)[k];
            const a = mark.getBoundingClientRect(), b = mark.closest('svg').getBoundingClientRect();
            return [(a.x + a.width / 2 - b.x) / b.width, (a.y + a.height / 2 - b.y) / b.height];
        }""",
        [figure, selector, k],
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [browser.DESKTOP, browser.PHONE])
def test_every_figure_kind_is_drawn_without_error_or_request(opened, size, dark):
    page, seen = opened(size=size, dark=dark)
    for figure in FIGURES:
        box = page.locator(f"#{figure} .drawing").first.bounding_box()
        assert box["width"] > 80, figure
        assert box["height"] > 60, figure
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert seen.problems == []
    assert seen.requests == [page.url]


def test_drawings_have_names_and_follow_the_width(opened):
    page, _ = opened()
    assert page.get_by_role("img", name="Curve: first run, second run").count() == 1
    width = "document.querySelector('#curve .drawing').viewBox.baseVal.width"
    before = page.evaluate(width)
    page.set_viewport_size({"width": browser.PHONE[0], "height": browser.PHONE[1]})
    page.wait_for_selector(f"#curve .drawing:not([viewBox^='0 0 {before:g} '])")
    assert page.evaluate(width) < browser.PHONE[0]


def test_chip_hides_and_shows_run_in_every_figure(opened):
    page, _ = opened()
    assert all("second run" in describe(page, figure) for figure in FIGURES)
    page.click(".chip:has-text('second run')")
    for figure in FIGURES:
        assert "second run" not in describe(page, figure), figure
        assert "first run" in describe(page, figure), figure
    page.click(".chip:has-text('first run')")
    assert all("No run of this figure is selected" in page.inner_text(f"#{figure}") for figure in FIGURES)
    page.click("text=Show all")
    assert all("second run" in describe(page, figure) for figure in FIGURES)
    page.click(".chip:has-text('second run')", modifiers=["Alt"])
    assert page.locator(".chip[aria-pressed=true]").all_inner_texts() == ["second run"]
    page.dblclick(".chip:has-text('first run')")
    assert page.locator(".chip[aria-pressed=true]").all_inner_texts() == ["first run"]


def test_chip_hover_highlights_run(opened):
    page, _ = opened()
    faint = """() => ['curve', 'cost', 'nodes'].map(figure =>
        [...document.querySelectorAll(`#${figure} .of-1`)].every(one => getComputedStyle(one).opacity < 0.5))"""
    page.emulate_media(reduced_motion="reduce")
    page.hover(".chip:has-text('first run')")
    assert page.evaluate(faint) == [True] * 3
    page.mouse.move(5, 5)
    assert page.evaluate(faint) == [False] * 3


def test_common_prefix_of_names_is_shown_once(opened):
    page, _ = opened(payload(("study, tau=1", "study, tau=10")))
    assert page.inner_text("#filter .of") == "study:"
    assert page.locator(".chip").all_inner_texts() == ["tau=1", "tau=10"]


def test_runs_named_in_payload_are_shown_initially(opened):
    runs = [f"run {k}" for k in range(20)]
    bars = {"kind": "bars", "id": "sent", "title": "Sent", "note": "", "x_label": "bytes", "unit": "B"}
    page, _ = opened(single(bars | {"runs": dict.fromkeys(runs, 1)}) | {"runs": runs, "shown": runs[:8]})
    assert page.locator(".chip[aria-pressed=true]").count() == 8
    assert page.locator("#sent rect").count() == 8


def test_chips_beyond_two_lines_are_folded(opened):
    runs = [f"policy.neighbours={k}, network.loss=0.{k % 4}" for k in range(40)]
    bars = {"kind": "bars", "id": "sent", "title": "Sent", "note": "", "x_label": "bytes", "unit": "B"}
    page, _ = opened(single(bars | {"runs": dict.fromkeys(runs, 1)}) | {"runs": runs, "shown": runs[:8]})
    height = "document.getElementById('filter').offsetHeight"
    assert page.evaluate(height) < 60
    assert page.locator(".chip:visible").all_inner_texts()[:2] == [
        "policy.neighbours=0, network.loss=0.0",
        "policy.neighbours=1, network.loss=0.1",
    ]
    assert page.locator(".chip:visible").count() == 8
    page.click("text=8 of 40 runs")
    assert page.locator(".chip:visible").count() == 40
    assert page.evaluate(height) <= browser.DESKTOP[1] / 2
    page.click(".chip >> nth=39")
    page.click("text=9 of 40 runs")
    assert page.locator(".chip:visible").count() == 9
    page.focus(".chip >> nth=39")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "8 of 40 runs"  # the focus is not lost with the chip


def test_chips_are_folded_only_on_narrow_pages(opened):
    page, _ = opened(payload(("the first run of them all", "the second run of them all")), size=browser.PHONE)
    page.click(".chip >> nth=0")
    assert page.locator(".chip:visible").all_inner_texts() == ["the second run of them all"]
    page.set_viewport_size({"width": browser.DESKTOP[0], "height": browser.DESKTOP[1]})
    page.wait_for_selector(".more", state="hidden")
    assert page.locator(".chip:visible").count() == 2


def test_no_label_is_cut_or_covered_on_a_narrow_page(opened):
    names = ("a first run of them all with a long name", "a second run of them all with a long name")
    starts = "the same long start of all the labels of a sweep, topology=ring, "
    labels = {name: f"{starts}models={k}, tau=10" for k, name in enumerate(names)}
    page, _ = opened(payload(names) | {"labels": labels}, size=browser.PHONE)
    assert page.eval_on_selector("#filter .of", "one => one.getBoundingClientRect().right <= innerWidth")
    nodes = next(one for one in payload()["sections"][0]["figures"] if one["id"] == "nodes")
    strip = {"values": np.array([12.0, 80.0, 500.0, 1990.0]), "worst": np.array([False, False, False, True]), "mean": 650}
    page, _ = opened(single(nodes | {"runs": dict.fromkeys(nodes["runs"], strip)}), size=browser.PHONE)
    assert page.is_checked("#nodes label:has-text('log x') input")
    boxes = "all => all.map(one => one.getBoundingClientRect()).map(({x, right, y}) => [x, right, Math.round(y)])"
    shown = page.eval_on_selector_all("figure svg text", boxes)
    for left, right, top in shown:
        assert not [one for one in shown if one[2] == top and left < one[0] < right + 3]


def test_labels_replace_names(opened):
    names = ("net, topology.name=ring, budget.models=0", "net, topology.name=ring, budget.models=4")
    labels = dict(zip(names, ("net, topology=ring, models=none", "net, topology=ring, models=4"), strict=True))
    page, _ = opened(payload(names) | {"labels": labels})
    assert page.inner_text("#filter .of") == "net, topology=ring:"
    assert page.locator(".chip").all_inner_texts() == ["models=none", "models=4"]
    assert "ring, models=none" not in page.inner_text("#sent")


def test_runs_with_two_factors_have_hue_and_tint(opened):
    page, _ = opened(payload() | {"styles": [[1, 0, 0, 2], [1, 6, 3, 4]]})
    assert page.locator("#curve .line.run-1.tint-0.dash-0.of-0").count() == 1
    assert page.locator("#curve .line.run-1.tint-6.dash-3.of-1").count() == 1
    colours = "all => all.map(one => getComputedStyle(one).stroke)"
    first, second = page.eval_on_selector_all("#curve .line", colours)
    assert first != second
    marks = page.eval_on_selector_all("#cost .mark", "all => all.map(one => one.getAttribute('d').replace(/[\\d.]+/g, ''))")
    assert marks[0] != marks[1]


def test_theme_switch_changes_colours_and_is_remembered(opened):
    page, _ = opened(dark=False)
    colours = """() => [getComputedStyle(document.documentElement).backgroundColor,
        [...document.querySelector('#summed canvas').getContext('2d').getImageData(1, 1, 1, 1).data].join()]"""
    light = page.evaluate(colours)
    page.click("#theme >> text=Dark")
    dark = page.evaluate(colours)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    page.reload()
    ready(page)
    assert page.evaluate(colours) == dark
    page.click("#theme >> text=Auto")
    assert page.evaluate(colours) == light


def test_page_opens_without_local_storage(opened):
    forbidden = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('forbidden') } })"
    page, seen = opened(before=forbidden)
    page.click("#theme >> text=Dark")
    assert page.get_attribute("html", "data-theme") == "dark"
    assert seen.problems == []


def test_hover_shows_values_of_each_figure_kind(opened):
    page, _ = opened()
    tip = hover(page, "curve", 0.84, 0.4)
    assert [each in tip for each in ("rounds 6", "0.66", "0.56", "0.55 to 0.57")] == [True] * 4
    assert "0.8" in (tip := hover(page, "cost", *spot(page, "cost", ".mark")))
    assert "± 0.01" in tip
    assert "2 MB" in tip
    tip = hover(page, "sent", *spot(page, "sent", ".bar"))
    assert [each in tip for each in ("1.5 kB", "500 B", "2 kB", "3 kB")] == [True] * 4
    tip = hover(page, "nodes", *spot(page, "nodes", ".rings"))
    assert "node 0, among the worst tenth" in tip
    assert "0.25" in tip
    tip = hover(page, "summed", 0.99, 0.05)
    assert [each in tip for each in ("1.5 times", "ann", "di")] == [True] * 3
    tip = hover(page, "over-time", 0.98, 0.05, drawing=1)
    assert [each in tip for each in ("5 times", "node 0 (left)", "node 3 (right)")] == [True] * 3
    tip = hover(page, "drawing", *spot(page, "drawing", ".node"))
    assert [each in tip for each in ("ann", "left", "0.1", "learned from bob", "0.75", "learned from cy")] == [True] * 6
    page.mouse.move(1, 1)
    assert page.locator(".tip:visible").count() == 0


def test_arrow_keys_move_between_values(opened):
    page, _ = opened()
    page.locator("#curve .drawing").focus()
    assert "rounds 6" in page.inner_text(".tip")
    page.keyboard.press("ArrowLeft")
    assert "rounds 5" in page.inner_text(".tip")
    page.keyboard.press("Home")
    assert "rounds 1" in page.inner_text(".tip")
    page.keyboard.press("Escape")
    assert page.locator(".tip:visible").count() == 0
    page.locator("#summed .drawing").first.focus()
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert "2.5 times" in page.inner_text(".tip")


def test_redraw_keeps_focus_and_tooltip(opened):
    page, _ = opened()
    page.locator("#sent .drawing").focus()
    assert "2 kB" in page.inner_text(".tip:visible")
    page.evaluate("Charts.redrawAll()")
    assert "2 kB" in page.inner_text(".tip:visible")
    assert page.evaluate("document.activeElement.closest('figure').id") == "sent"


def test_axis_of_zero_values_has_no_negative_ticks(opened):
    page, _ = opened()
    page.evaluate("""() => {
        const box = document.createElement("div"), series = [{name: "in", colour: 0, x: [1, 2], y: [0, 0]}];
        box.id = "nothing";
        document.body.append(box);
        Charts.lines(box, {name: "nothing", series, x: {label: "round"}, y: {label: "sent", unit: "bytes"}});
    }""")
    drawn = page.locator("#nothing svg[role=img]").text_content()
    assert "sent" in drawn
    assert "\N{MINUS SIGN}" not in drawn


def ends(page, names, width):
    """Return the names that a drawing of this width has at the ends of its lines, and whether all are within it."""
    page.evaluate(
        """([names, width]) => {
        document.getElementById("ends")?.remove();
        const box = document.createElement("div"), points = names.flatMap((name, k) => [1, 2].map((x) =>
            ({name, run: name, colour: k % 8, x, y: 0.9 + k / 1000})));
        box.id = "ends";
        box.style.width = `${width}px`;
        document.body.append(box);
        Charts.scatter(box, {name: "ends", points, joined: true, x: {label: "lr"}, y: {label: "accuracy"}});
    }""",
        [names, width],
    )
    page.wait_for_selector("#ends text.run")
    return page.evaluate("""() => {
        const texts = [...document.querySelectorAll("#ends text.run")];
        const lowest = document.querySelector("#ends svg[role=img]").getBoundingClientRect().bottom;
        return [texts.map((one) => one.textContent), texts.every((one) => one.getBoundingClientRect().bottom <= lowest)];
    }""")


def test_narrow_labels_keep_the_values_of_settings(opened):
    page, _ = opened()
    names = [f"neighbours={k}, models=2, lr=0.05" for k in (1, 2, 16)]
    assert ends(page, names, 1200)[0] == names
    shown, _ = ends(page, names, 420)
    assert len({*shown}) == 3
    assert [name.split("=")[1].split(",")[0] for name in shown] == ["1", "2", "16"]
    assert all(name.endswith("=2, lr=0.05") for name in shown)


def test_many_labels_at_the_ends_of_lines_stay_within_the_drawing(opened):
    page, _ = opened()
    shown, within = ends(page, [f"neighbours={k}" for k in range(24)], 350)
    assert (len(shown), within) == (24, True)


def test_heat_map_shows_values_and_frames_the_best(opened):
    page, _ = opened()
    assert page.locator("#grid .cell").count() == 2
    assert page.locator("#grid .best").count() == 1
    drawn = page.locator("#grid svg[role=img]").text_content()
    assert [word in drawn for word in ("2 MB", "900 MB", "ring", "none", "budget", "topology")] == [True] * 6
    tip = hover(page, "grid", *spot(page, "grid", ".best"))
    assert [word in tip for word in ("first run", "ring", "4", "2 MB", "\N{PLUS-MINUS SIGN} 100 kB")] == [True] * 5
    page.locator("#grid .drawing").focus()
    page.keyboard.press("End")
    assert "torus" in page.inner_text(".tip:visible")
    assert downloaded(page, "grid")[1:] == [
        ["first run", "ring", "4", "2000000", "100000"],
        ["second run", "torus", "none", "900000000", ""],
    ]


def test_heat_map_has_views_bold_values_and_upright_labels(opened):
    heat = payload()["sections"][0]["figures"][-1]
    columns = ["a long name", "another name", "one more name", *"abcde"]
    cells = {"first run": {"row": 0, "column": 0, "value": 0.5, "bold": True}}
    views = [{"label": "wide", "rows": ["x"], "columns": columns, "cells": cells}]
    views.append(
        {"label": "small", "rows": ["x"], "columns": ["y"], "cells": {"second run": {**cells["first run"], "value": 1}}}
    )
    kept = {key: value for key, value in heat.items() if key not in ("rows", "columns", "cells")}
    page, _ = opened(single(kept | {"unit": "", "views": views}), size=browser.PHONE)
    assert page.locator("#grid text.bold").text_content() == "0.50"
    assert page.locator("#grid text[transform*='rotate(-90)']").count() == len(columns)
    page.get_by_role("button", name="small").click()
    assert page.locator("#grid text.bold").text_content() == "1.000"
    assert page.locator("#grid text[transform*='rotate(-90)']").count() == 0
    assert [row[:2] for row in downloaded(page, "grid")[1:]] == [["wide", "first run"], ["small", "second run"]]


def test_heat_map_names_missing_values(opened):
    figure = payload()["sections"][0]["figures"][-1]
    figure["cells"]["first run"] |= {"value": None, "missing": "by 1 of 4"}
    figure["cells"]["second run"]["value"] = None
    figure["cells"]["third"] = {"row": 0, "column": 1, "value": 3e6}
    page, _ = opened(single(figure) | {"runs": ["first run", "second run", "third"]})
    assert page.locator("#grid .cell.none").count() == 2
    assert all(word in page.locator("#grid svg[role=img]").text_content() for word in ("never", "by 1 of 4"))


def test_value_without_limit_is_at_the_right(opened):
    points = [{"run": run, "x": x, "y": 0.5, "label": run} for run, x in (("first run", 8), ("second run", None))]
    points[1]["no_limit"] = True
    scatter = {
        "kind": "scatter",
        "id": "cost",
        "title": "Cost",
        "note": "",
        "x_label": "budget",
        "x_unit": "",
        "x_log": False,
    }
    page, seen = opened(single(scatter | {"y_label": "y", "points": points}))
    limited, none = (spot(page, "cost", ".mark", k)[0] for k in (0, 1))
    assert none > limited + 0.05
    assert page.locator("#cost text[text-anchor=middle]").all_text_contents()[-1] == "none"
    assert "none" in hover(page, "cost", *spot(page, "cost", ".mark", 1))
    assert downloaded(page, "cost")[2][2] == "none"
    assert seen.problems == []


def test_bytes_over_decades_have_a_log_axis(opened):
    names, rounds = ("first run", "second run"), np.arange(1, 5)
    sent = {"first run": rounds * 1e6, "second run": rounds * 1e8}
    views = [
        {"label": "rounds", "unit": "", "x": dict.fromkeys(names, rounds)},
        {"label": "bytes", "unit": "B", "x": sent},
    ]
    lines = {"kind": "lines", "id": "curve", "title": "Curve", "note": "", "views": views, "y_label": "accuracy"}
    bars = {"kind": "bars", "id": "sent", "title": "Sent", "note": "", "x_label": "bytes", "unit": "B"}
    bars["runs"] = {"first run": {"parts": {"models": 9e5, "control": 1e5}}, "second run": {"parts": {"models": 1e8}}}
    curves = lines | {"y": dict.fromkeys(names, rounds / 10)}
    page, _ = opened(payload() | {"sections": [{"id": "s", "title": "S", "text": [], "figures": [curves, bars]}]})
    assert page.locator("#curve label:visible").count() == 0
    page.click("#curve .switch button:has-text('bytes')")
    assert page.is_checked("#curve label:has-text('log x') input")
    assert page.is_checked("#sent label:has-text('log x') input")
    assert (page.locator("#sent rect").count(), page.locator("#sent path.bar").count()) == (0, 2)
    assert "10 MB" in page.locator("#sent svg[role=img]").text_content()
    page.uncheck("#sent label:has-text('log x') input")
    assert page.locator("#sent rect").count() == 3


def test_zero_has_no_dot_on_a_log_axis(opened):
    bars = {"kind": "bars", "id": "sent", "title": "Sent", "note": "", "x_label": "bytes", "unit": "B"}
    names = ("none", "few", "many")
    data = single(bars | {"runs": dict(zip(names, (0.0, 1e5, 1e8), strict=True))}) | {"runs": list(names)}
    page, seen = opened(data)
    assert page.locator("#sent path.bar").count() == 2
    assert "0 B" in page.locator("#sent svg[role=img]").text_content()
    assert seen.problems == []


def test_values_around_zero_have_a_zero_line(opened):
    bars = {"kind": "bars", "id": "sent", "title": "Sent", "note": "", "x_label": "reward", "unit": ""}
    figures = [bars | {"runs": {"first run": -2.0, "second run": 1.0}}]
    figures += curve([1, 2, 3], [-0.4, 0.2, 0.6])["sections"][0]["figures"]
    page, _ = opened(payload() | {"sections": [{"id": "s", "title": "S", "text": [], "figures": figures}]})
    (x,) = page.eval_on_selector_all("#sent .zero", "all => all.map(one => +one.getAttribute('d').match(/M([\\d.]+)/)[1])")
    edges = "all => all.map(one => [one.x.baseVal.value, one.x.baseVal.value + one.width.baseVal.value])"
    negative, positive = page.eval_on_selector_all("#sent rect", edges)
    assert (negative[1], positive[0]) == (pytest.approx(x, abs=0.3), pytest.approx(x, abs=0.3))
    assert page.locator("#curve .zero").count() == 1
    figures[1]["y"] = {"first run": np.array([0.1, 0.2, 0.3])}
    page, _ = opened(payload() | {"sections": [{"id": "s", "title": "S", "text": [], "figures": figures[1:]}]})
    assert page.locator("#curve .zero").count() == 0


def test_map_has_names_and_north_is_up(opened):
    page, _ = opened()
    assert page.locator("#drawing text.place").all_text_contents() == ["bob", "ann", "cy", "di"]  # most edges first
    upper, lower = spot(page, "drawing", ".node", 1), spot(page, "drawing", ".node", 2)
    assert upper[1] < lower[1]  # in the data y is 0 in the north
    numbers = payload()["sections"][0]["figures"][6]
    numbers["nodes"]["label"] = ["0", "1", "2", "3"]
    page, _ = opened(single(numbers))
    assert page.locator("#drawing text.place").count() == 0


def test_touch_shows_values_until_tap_elsewhere(opened):
    page, _ = opened(size=browser.PHONE)
    bar = page.locator("#sent .drawing")
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    touch = {"pointerType": "touch", "bubbles": True, "clientX": box["x"] + 9, "clientY": box["y"] + 40}
    bar.dispatch_event("pointerdown", touch)
    bar.dispatch_event("pointerleave", touch)
    assert "2 kB" in page.inner_text(".tip:visible")
    page.locator("h1").dispatch_event("pointerdown", touch)
    assert page.locator(".tip:visible").count() == 0


def test_tabs_change_axis_and_offer_log_scale(opened):
    rounds = np.arange(1, 5)
    x = {"first run": 10.0**rounds}
    views = [{"label": "rounds", "unit": "", "x": {"first run": rounds}}, {"label": "time", "unit": "s", "x": x}]
    lines = {"kind": "lines", "id": "curve", "title": "Curve", "note": "", "views": views, "y_label": "loss"}
    page, _ = opened(single(lines | {"y": {"first run": np.array([9.0, 30, 200, 900])}}))
    assert page.locator("#curve label:visible").all_inner_texts() == ["log y"]
    assert page.is_checked("#curve label:has-text('log y') input")
    page.click("#curve .switch button:has-text('time')")
    assert "time (h)" in page.inner_text("#curve")
    page.check("#curve label:has-text('log x') input")
    assert "16.7 min" in page.inner_text("#curve") or "17 min" in page.inner_text("#curve")


def test_matrix_selector_shows_other_run(opened):
    data = payload()
    data["sections"][0]["figures"][4]["frames"]["second run"][0]["values"] = np.full((NODES, NODES), 17)
    page, _ = opened(data)
    assert "3 times" in hover(page, "over-time", 0.7, 0.05)
    page.select_option("#over-time select", "second run")
    assert "17 times" in hover(page, "over-time", 0.7, 0.05)


def test_download_contains_all_data_of_each_figure_kind(opened):
    page, _ = opened()
    page.click(".chip:has-text('second run')")  # the file contains hidden runs, too
    rows = downloaded(page, "curve")
    assert rows[0] == ["run", "rounds", "bytes sent (B)", "accuracy", "low", "high"]
    assert rows[1] == ["first run", "1", "2000000", "0.51", "0.5", "0.52"]
    assert rows[-1] == ["second run", "6", "6000000", "0.66", "", ""]
    assert len(rows) == 1 + 2 * ROUNDS
    assert downloaded(page, "cost") == [
        ["run", "label", "bytes sent (B)", "accuracy", "deviation", "on front"],
        ["first run", "first run", "2000000", "0.8", "0.01", "1"],
        ["second run", "second run", "6000000", "0.9", "", "1"],
    ]
    assert downloaded(page, "sent") == [
        ["run", "part", "bytes (B)", "limit"],
        ["first run", "rounds", "1500", "3000"],
        ["first run", "preparation", "500", "3000"],
        ["second run", "", "", ""],
    ]
    rows = downloaded(page, "nodes")
    assert rows[:2] == [["run", "node", "accuracy", "worst tenth"], ["first run", "0", "0.1", "1"]]
    assert rows[5:] == [["second run", str(k), ("0.5", "0.6", "0.7", "")[k], "01"[k == 0]] for k in range(NODES)]
    rows = downloaded(page, "over-time")
    assert rows[:3] == [
        ["run", "frame", "node", "learned from", "value (times)"],
        ["first run", "rounds 1", "0", "0", "1"],
        ["first run", "rounds 1", "0", "1", "2"],
    ]
    assert len(rows) == 1 + 2 * 2 * NODES**2
    assert downloaded(page, "summed")[2] == ["first run", "all", "ann", "bob", "0.5"]
    rows = downloaded(page, "drawing")
    assert rows[1] == ["", "edge", "ann", "bob", "", "", "", ""]
    assert ["first run", "node", "cy", "", "0.3", "", "1", "1"] in rows
    assert ["second run", "link", "bob", "ann", "", "0.75", "", ""] in rows


def test_download_contains_no_formulas(opened):
    page, _ = opened(payload(('=HYPERLINK("x")', "a, b")))
    names = [row[0] for row in downloaded(page, "cost")]
    assert names == ["run", '\'=HYPERLINK("x")', "a, b"]


def test_markup_in_names_is_shown_as_text(opened):
    data = payload((HOSTILE, f"{HOSTILE}2"))
    data["sections"][0] |= {"title": HOSTILE, "text": [HOSTILE]}
    for figure in data["sections"][0]["figures"]:
        figure |= {"title": HOSTILE, "note": HOSTILE}
    data["sections"][0]["figures"][6]["nodes"]["label"] = [HOSTILE] * NODES
    page, seen = opened(data, title=HOSTILE)
    assert page.title() == HOSTILE
    assert page.inner_text("h1") == HOSTILE
    assert page.locator(".chip").first.inner_text() == HOSTILE
    assert all(HOSTILE in page.inner_text(f"#{figure}") for figure in FIGURES)
    assert HOSTILE in hover(page, "drawing", *spot(page, "drawing", ".node"))
    assert page.locator("img").count() == 0
    assert seen.problems == []
    assert seen.requests == [page.url]


def test_table_rows_have_colour_key_of_their_run(opened):
    rows = "".join(f"<tr><td>{name}</td><td>1</td></tr>" for name in ("second run", "all"))
    page, _ = opened(parts={"table": f"<table><tbody>{rows}</tbody></table>"})
    assert page.locator("#table td:has-text('second run') .key.run-1").count() == 1
    assert page.locator("#table .key").count() == 1


def test_browser_without_required_api_shows_message(chromium, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report_page.render("A report", payload(), {"findings": "<p>Found.</p>"}), "utf-8")
    with browser.page(chromium) as (page, seen):
        page.add_init_script("delete window.DecompressionStream")
        page.goto(path.as_uri())
        page.wait_for_selector("text=This browser cannot draw the figures")
        assert page.is_visible("text=Found.")
        assert seen.problems == []


def test_foreign_script_does_not_run(opened):
    page, seen = opened(parts={"findings": "<script>document.title = 'taken'</script><img src='http://127.0.0.1:9/x'>"})
    assert page.title() == "A report"
    assert len(seen.problems) == 2  # the browser reports both refusals
    assert all("Content Security Policy" in problem for problem in seen.problems)


def empty_figures():
    drawn = payload()["sections"][0]["figures"]
    nothing = {"y": {}, "views": [], "runs": {}, "frames": {}, "points": [], "cells": {}}
    return [{key: nothing.get(key, value) for key, value in figure.items()} for figure in drawn]


TICKS = """figure => [...document.querySelectorAll(`#${figure} text[text-anchor=middle]`)].map(
    one => [+one.getAttribute('x'), +one.textContent.replace('\\u2212', '-')])"""


def curve(x, y, **more):
    views = [{"label": "x", "unit": "", "x": {"first run": np.array(x, float)}}]
    figure = {"kind": "lines", "id": "curve", "title": "Curve", "note": "", "views": views, "y_label": "y"}
    return single(figure | {"y": {"first run": np.array(y, float)}} | more)


@pytest.mark.parametrize("x", [range(1, 4), range(29), np.arange(0, 28.1, 0.7), np.arange(0, 0.12, 0.005), range(0, 110, 5)])
@pytest.mark.parametrize("size", [browser.DESKTOP, browser.PHONE])
def test_ticks_are_at_positions_of_their_numbers(opened, x, size):
    page, _ = opened(curve(x, [0.5] * len(x)), size=size)
    ticks = page.evaluate(TICKS, "curve")[1:-1]  # the outer ones may be shifted inwards
    ticks = ticks if len(ticks) > 1 else page.evaluate(TICKS, "curve")[:2]
    places, numbers = zip(*ticks, strict=True)
    per_unit = np.diff(places) / np.diff(numbers)
    np.testing.assert_allclose(per_unit, per_unit[0], rtol=0.02)
    if all(value == int(value) for value in x):
        assert all(number == int(number) for number in numbers)


@pytest.mark.parametrize(("y", "target"), [([0.5, 0.9], 1.5), ([9000, 10], 0.1), ([0.0, 0.0], 0.8), ([3, 3], None)])
def test_axis_contains_target_and_flat_line(opened, y, target):
    page, _ = opened(curve([1, 2], y, **({} if target is None else {"target": target})))
    inside = page.evaluate("""() => [...document.querySelectorAll('#curve .aim, #curve .line')].map(one => {
        const a = one.getBoundingClientRect(), ticks = [...document.querySelectorAll('#curve .grid')]
            .map(each => each.getBoundingClientRect().top);
        return a.top >= Math.min(...ticks) - 2 && a.bottom <= Math.max(...ticks) + 2;
    })""")
    assert inside == [True] * (1 if target is None else 2)
    if target is None:
        assert "\u2212" not in page.inner_text("#curve")


@pytest.mark.parametrize(
    ("unit", "label", "first"),
    [("B", "amount (kB)", "0"), ("s", "amount (h)", "0.0"), ("", "amount (axis from 39,400)", "39,400")],
)
def test_axis_of_bytes_and_seconds_begins_at_zero_and_others_say_where(opened, unit, label, first):
    line = {"kind": "lines", "id": "curve", "title": "Curve", "note": "", "y_label": "amount", "y_unit": unit}
    line["views"] = [{"label": "rounds", "unit": "", "x": {"first run": np.array([1, 2, 3])}}]
    page, _ = opened(single(line | {"y": {"first run": np.array([39_410.0, 39_460.0, 39_490.0])}}))
    assert page.locator("#curve svg text").first.text_content() == label
    assert page.locator("#curve svg text[text-anchor=end]").first.text_content() == first


def test_keyboard_reaches_what_scrolls_and_nothing_else(opened):
    wide = '<div class="scroll"><table><tr>' + "<td>a long word</td>" * 7 + "</tr></table></div>"
    page, _ = opened(parts={"table": wide + "<div class='scroll'>short</div>"}, size=browser.PHONE)
    scrollers = page.locator("#table .scroll")
    assert [scrollers.nth(k).get_attribute("aria-label") for k in range(2)] == ["Results in numbers", None]
    assert [scrollers.nth(k).get_attribute("tabindex") for k in range(2)] == ["0", None]
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_selector("#table .scroll:not([tabindex]) table")


def test_points_of_same_name_are_joined_and_labelled_once(opened):
    points = [
        {"run": run, "x": x, "y": y, "label": label, "on_front": False}
        for run, x, y, label in [("first run", 1, 2, "slow"), ("second run", 2, 3, "slow"), ("first run", 3, 1, "fast")]
    ]
    scatter = {"kind": "scatter", "id": "cost", "title": "Cost", "note": "", "x_label": "tau", "x_unit": "", "x_log": False}
    page, _ = opened(single(scatter | {"y_label": "y", "points": points, "joined": True}))
    assert page.locator("#cost text.run").all_text_contents() == ["slow", "fast"]
    assert page.eval_on_selector_all("#cost .join", "all => all.map(one => one.getAttribute('d').split('L').length)") == [
        2,
        1,
    ]


def test_matrices_shrink_with_their_box(opened):
    page, _ = opened()
    assert page.evaluate("""() => ['over-time', 'summed'].every(id => {
        const box = document.querySelector(`#${id} .chart`), all = [...box.querySelectorAll('canvas')];
        const widths = () => all.map(one => one.getBoundingClientRect().width), before = widths();
        box.style.width = '240px';  // as on paper, where nothing is drawn anew
        return all.length > 1 && widths().every((width, k) => 0 < width && width < before[k]) && all.every(one =>
            one.getBoundingClientRect().right <= box.getBoundingClientRect().right
            && Math.abs(one.getBoundingClientRect().width - one.getBoundingClientRect().height) < 1);
    })""")


def test_figures_without_data_show_reason(opened):
    figures = [figure | {"note": f"There is none: {figure['id']}."} for figure in empty_figures()]
    data = payload() | {"sections": [{"id": "none", "title": "None", "text": [], "figures": figures}]}
    page, seen = opened(data)
    for figure in FIGURES:
        assert page.inner_text(f"#{figure} .empty") == f"There is none: {figure}."
    assert page.locator(".drawing").count() == 0
    assert seen.problems == []


def test_figures_with_only_missing_values_are_empty(opened):
    data = payload()
    lines, _, _, strips, *_ = data["sections"][0]["figures"]
    lines["y"] = {name: np.full(ROUNDS, np.nan) for name in data["runs"]}
    for strip in strips["runs"].values():
        strip["values"] = np.full(NODES, np.nan)
    page, seen = opened(data)
    assert page.inner_text("#curve .empty") == "Over nodes."
    assert page.inner_text("#nodes .empty") == "There is no data for this figure."
    assert seen.problems == []


def test_print_layout_is_open_and_light(opened):
    page, _ = opened(parts={"scenario": "<pre>nodes = 4</pre>", "versions": "<dl><dt>p2pfl</dt><dd>1</dd></dl>"}, dark=True)
    assert not page.is_visible("text=nodes = 4")
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_selector("text=nodes = 4")
    assert all(page.is_visible(f"#{figure} .drawing") for figure in FIGURES)
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 33, 39)"
    red = """end => {
        const canvas = document.querySelector('#summed canvas'), at = end ? canvas.width - 2 : 1;
        return canvas.getContext('2d').getImageData(at, at, 1, 1).data[0];
    }"""
    least, most = page.evaluate(red, False), page.evaluate(red, True)
    assert least > 200 > 60 > most  # zero is white, the maximum is dark
    page.emulate_media(media="screen")
    page.wait_for_selector("text=nodes = 4", state="hidden")
