"""Status page of a node: its contents, its access control, and its display in a browser with real nodes."""

import asyncio
import itertools
import json
import re
import signal
import socket
import sys
import urllib.request
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from p2pfl._util import http_server as pages
from p2pfl._util.http_server import PageServer, Resource, in_thread
from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.main import main
from p2pfl.node.status import endpoints as metrics
from p2pfl.node.status.endpoints import NEWEST, status_page
from tests.support.browser import PHONE, browser, needs_chromium
from tests.support.browser import page as new_page
from tests.support.ports import free_ports
from tests.support.processes import processes

TIMEOUT = 60_000  # milliseconds before a test fails


# Over HTTP


async def ask(address, request):
    """Send bytes; return the status line, the headers and the body."""
    host, _, port = address.removeprefix("http://").strip("/").rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(request)
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status, {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}, body


async def until_shown(address):
    """Wait until the page accepts one more connection."""
    while True:
        with suppress(OSError):
            if (await ask(address, get()))[2] == b"hello":
                return
        await asyncio.sleep(0.01)


def get(path="/", host="127.0.0.1", method="GET"):
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


@asynccontextmanager
async def showing(shown, host="127.0.0.1"):
    page = PageServer(shown, host, 0)
    address = await page.start()
    try:
        yield address
    finally:
        await page.close()


HELLO = {"/": Resource("text/plain", lambda: b"hello")}


def test_page_has_security_headers(on_loop):
    async def main():
        async with showing(HELLO) as address:
            status, headers, body = await ask(address, get())
            assert (status, body) == ("HTTP/1.1 200 OK", b"hello")
            assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert not [name for name in headers if name.startswith("access-control")]
            assert "aiohttp" not in headers["server"]
            assert (await ask(address, get(method="HEAD")))[::2] == ("HTTP/1.1 200 OK", b"")

    on_loop(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]:80", "192.168.1.5"])
def test_page_accepts_host_that_is_address_or_localhost(host, on_loop):
    async def main():
        async with showing(HELLO) as address:
            assert (await ask(address, get(host=host)))[2] == b"hello"

    on_loop(main())


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "", "[::1", "a@b"])
def test_page_refuses_foreign_host_names(host, on_loop):
    async def main():
        async with showing(HELLO) as address:
            status, _, body = await ask(address, get(host=host))
            assert b"hello" not in body
            assert status.split()[1] in ("400", "421")

    on_loop(main())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get(method="POST"), 405),
        (get(method="PUT"), 405),
        (get(method="OPTIONS"), 405),
        (get(method="DELETE"), 405),
        (get("/nowhere"), 404),
        (get("/?a=b"), 404),
        (get("/../pyproject.toml"), 404),
        (get("/%2e%2e/key.pem"), 404),
        (get("//"), 404),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00" + bytes(64) + b"\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
    ],
)
def test_page_refuses_other_requests_and_continues(request_, status, caplog, on_loop):
    async def main():
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        async with showing(HELLO) as address:
            assert (await ask(address, request_))[0].split()[1] == str(status)
            assert (await ask(address, get()))[2] == b"hello"
        assert faults == []

    on_loop(main())
    assert caplog.records == []  # requests cannot fill a node's log


def test_page_error_affects_only_its_request(caplog, on_loop):
    async def main():
        async with showing(HELLO | {"/bad": Resource("text/plain", lambda: b"%d" % (1 // 0))}) as address:
            assert (await ask(address, get("/bad")))[0].split()[1] == "500"
            assert (await ask(address, get()))[2] == b"hello"

    on_loop(main())
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.slow
def test_page_content_is_cached_briefly(on_loop):
    made = []

    async def main():
        async with showing({"/": Resource("text/plain", lambda: made.append(1) or b"%d" % len(made))}) as address:
            bodies = [(await ask(address, get()))[2] for _ in range(20)]
            assert bodies[0] == bodies[1]
            while (await ask(address, get()))[2] == bodies[-1]:
                await asyncio.sleep(0.01)

    on_loop(main())


@pytest.mark.slow
def test_page_limits_connections_and_closes_idle_ones(monkeypatch, on_loop):
    monkeypatch.setattr(pages, "CONNECTIONS", 4)
    monkeypatch.setattr(pages, "LONGEST", 0.3)

    async def main():
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        async with showing(HELLO) as address:
            host, _, port = address.removeprefix("http://").strip("/").rpartition(":")
            idle = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                refused = await asyncio.open_connection(host, int(port))
                with pytest.raises(OSError, match="reset"):
                    refused[1].write(get())
                    if await refused[0].read() == b"":
                        raise OSError("reset")
                assert [await reader.read() for reader, _ in idle] == [b""] * 4
                await until_shown(address)
            for _, writer in [*idle, refused]:
                writer.close()
        assert faults == []

    on_loop(main())


@pytest.mark.slow
def test_page_closes_connection_of_client_that_does_not_read(monkeypatch, on_loop):
    monkeypatch.setattr(pages, "CONNECTIONS", 2)
    monkeypatch.setattr(pages, "LONGEST", 0.3)
    asked = []
    large = b"x" * 30_000_000  # more than the operating system buffers

    async def main():
        page = PageServer(HELLO | {"/large": Resource("text/plain", lambda: asked.append(1) or large)}, "127.0.0.1", 0)
        address = await page.start()
        place = "127.0.0.1", int(address.strip("/").rpartition(":")[2])

        async def deaf():
            connection = socket.create_connection(place)
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(connection, get("/large"))
            return connection

        async with asyncio.timeout(30):
            connections = [await deaf() for _ in range(2)]
            while page.connections < 2:
                await asyncio.sleep(0.01)
            await until_shown(address)
            monkeypatch.setattr(pages, "LONGEST", 600)
            asked.clear()
            connections.append(await deaf())
            while not asked:
                await asyncio.sleep(0.01)
            await page.close()
        for connection in connections:
            connection.close()

    on_loop(main())


def test_page_reports_port_in_use_and_missing_package(monkeypatch, on_loop):
    async def main():
        async with showing(HELLO) as address:
            where = address.removeprefix("http://").strip("/")
            page = PageServer(HELLO, "127.0.0.1", int(where.rpartition(":")[2]))
            with pytest.raises(ConfigurationError, match=f"cannot serve the page at {where}: address already in use"):
                await page.start()
            with pytest.raises(ConfigurationError, match="not a valid host name"):
                await PageServer(HELLO, "x" * 100 + ".example", 0).start()

    on_loop(main())
    for package in ("aiohttp", "prometheus_client"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ConfigurationError, match=r"pip install 'p2pfl-node\[status\]'"):
                asyncio.run(status_page(Board({}), "127.0.0.1", 0).start())


class Board:
    """Status observer with a state that the test sets."""

    def __init__(self, state):
        self.state = {"state": "running", "history": []} | state

    def fresh(self):
        return self.state


def test_status_json_replaces_nan_and_can_be_shortened(on_loop):
    history = [{"round": k, "validation": float("nan")} for k in range(1, 2 * NEWEST)]

    async def main():
        page = status_page(Board({"history": history}), "127.0.0.1", 0)
        address = await page.start()
        try:
            whole, newest = [(await ask(address, get(f"/status.json{query}")))[2] for query in ("", "?newest")]
        finally:
            await page.close()
        assert [row["round"] for row in json.loads(whole)["history"]] == [row["round"] for row in history]
        rows = json.loads(newest)["history"]
        assert [row["round"] for row in rows] == [row["round"] for row in history[-NEWEST:]]
        assert rows[0]["validation"] is None

    on_loop(main())


# As a command


@pytest.mark.slow
def test_run_refuses_taken_status_port_and_warns_of_public_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (port,) = free_ports(1)
    assert main(["init", "alice"]) == 0
    quick = ["--set", "rounds=1", "--set", 'task.name="concept-shift"', "--set", 'policy.name="local"']
    assert main(["run", "alice", *quick, "--status-port", str(port), "--status-host", "0.0.0.0"]) == 0
    printed = capsys.readouterr().out
    assert (
        f"status page: http://0.0.0.0:{port}/ (not on loopback: everyone who can connect to this address can read it)\n"
        in printed
    )
    assert main(["run", "alice", *quick, "--status-port", "0"]) == 0
    assert "not on loopback" not in capsys.readouterr().out

    async def taken():
        async with showing(HELLO) as address:
            port = address.rstrip("/").rpartition(":")[2]
            return await asyncio.to_thread(main, ["run", "alice", *quick, "--status-port", port])

    assert asyncio.run(taken()) == 2
    err = capsys.readouterr().err
    assert err.startswith("cannot serve the page at 127.0.0.1:")
    assert err.count("\n") == 1


# In a browser


@pytest.fixture
def chromium():
    """Browser for one test; its event loop must end before other tests of this module, which need their own."""
    with browser() as opened:
        yield opened


@contextmanager
def shown_to_browsers(state):
    """Serve the page of the given state in another thread, as calls to the browser block this one."""
    status_observer = Board(state)
    with in_thread(status_page(status_observer, "127.0.0.1", 0)) as address:
        yield SimpleNamespace(address=address, status_observer=status_observer)


HOSTILE = "<img src=x onerror=alert(1)>"


def hostile(k):
    """Return text of a peer that attempts to inject markup."""
    return [HOSTILE, '"><script>alert(2)</script>', "</td><svg onload=alert(3)>", "'`${alert(4)}", "javascript:alert(5)"][
        k % 5
    ]


def state_of(names, rounds=12):
    """Return a status with the given peers, and hostile text in every field that can come from another node."""
    weights = {"alice": 0.5} | dict.fromkeys(names[:2], 0.25)
    stages = {"merged": {"validation": 0.5, "test": 0.25}}
    row = {"models": 2, "bytes_in": 80_000, "bytes_out": 40_000, "seconds": 1.5, "weights": weights, "budget_bytes": 70_000}
    states = ("connected", "suspected", "connecting", "not connected", "done", hostile(0))
    return {
        "name": "alice",
        "started": 1.0,
        "federation": hostile(0),
        "task": hostile(1),
        "policy": hostile(2),
        "version": hostile(3),
        "reason": hostile(2),
        "disk": hostile(0),
        "broker": hostile(1),
        "election": {"coordinator": hostile(0), "term": "5.2", "problem": hostile(2)},
        "metric": hostile(2),
        "round": rounds,
        "rounds": 20,
        "history": [row | {"round": k, "stages": stages, "validation": 0.5, "test": 0.25} for k in range(1, rounds + 1)],
        "peers": [
            {
                "name": name,
                "state": states[k % 6],
                "reason": hostile(k) if k < 8 else "cannot reach 127.0.0.1:4101: connection refused; and then more words",
                "round": 7,
                "link": "direct",
                "staleness": 0.5,
                "bytes_in": 1234,
                "bytes_out": 5_000_000,
            }
            for k, name in enumerate(names)
        ],
        "traffic": {
            "sent": {"models": 3, "update": 900, "control": 80},
            "received": {"models": 4, "update": 10, "control": 9},
        },
        "rejected": {hostile(0): 3, hostile(1): 1},
        "budget": {"models": {"limit": 5, "used": 2}, "bytes": {"limit": 100_000, "used": 80_000}},
        "refused_by_budget": 2,
        "deadlines_expired": 1,
    }


@needs_chromium
def test_page_shows_foreign_text_as_text(chromium):
    names = [hostile(k) for k in range(5)] + ["bob"]
    with shown_to_browsers(state_of(names)) as shown, new_page(chromium) as (opened, seen):
        opened.on("dialog", lambda dialog: pytest.fail(f"the page ran a peer's script: {dialog.message}"))
        opened.goto(shown.address)
        opened.locator("tr[data-peer]").first.wait_for(timeout=TIMEOUT)
        assert opened.locator("tr[data-peer] th").all_inner_texts() == names
        assert opened.locator("tr[data-peer] td.reason").all_inner_texts() == [hostile(k) for k in range(6)]
        assert opened.locator("#rejected tbody th").all_inner_texts() == [hostile(0), hostile(1)]
        assert f"cannot write checkpoints ({HOSTILE})" in opened.locator("#banners").inner_text()
        assert f"Degraded: {hostile(2)}." in opened.locator("#banners").inner_text()
        assert hostile(0) in opened.locator("#tiles").inner_text()
        assert hostile(2) in opened.locator("#learning").inner_text()
        for tag in ("img", "script:not([src])", "[onload]", "[onerror]", "a[href^=javascript]", "iframe"):
            assert opened.locator(tag).count() == 0, tag
        assert seen.problems == []
        assert all(address.startswith(shown.address) for address in seen.requests)


@pytest.mark.slow
@needs_chromium
def test_page_shows_wait_for_members_and_revocation(chromium):
    state = state_of(["bob"]) | {"state": "waiting", "waiting": {"present": 1, "needed": 3, "seconds": None}}
    with shown_to_browsers(state | {"revoked_by": ["bob"]}) as shown, new_page(chromium) as (opened, _):
        opened.goto(shown.address)
        opened.get_by_text("waiting for members: 1 of 3").wait_for(timeout=TIMEOUT)
        said = "The membership of this node was revoked, according to bob."
        assert said in opened.locator("#banners").inner_text()
        shown.status_observer.state.update({"state": "revoked", "reason": "revoked in entry 3"})
        opened.get_by_text("revoked in entry 3").first.wait_for(timeout=TIMEOUT)
        assert said not in opened.locator("#banners").inner_text()


@needs_chromium
def test_page_policy_blocks_injected_scripts_and_requests(chromium):
    with shown_to_browsers(state_of(["bob"])) as shown, new_page(chromium) as (opened, _):
        opened.on("dialog", lambda dialog: pytest.fail("a script of the page's text has run"))
        opened.goto(shown.address)
        opened.evaluate(
            """() => { document.body.insertAdjacentHTML("beforeend", '<img src="http://127.0.0.1:1/x" onerror="alert(1)">');
            document.body.append(Object.assign(document.createElement("script"), { text: "alert(2)" })); }"""
        )
        assert opened.evaluate("fetch('http://127.0.0.1:1/').then(() => 'sent', (error) => error.name)") == "TypeError"
        assert opened.evaluate("import('data:text/javascript,1').then(() => 'run', (error) => error.name)") == "TypeError"


@needs_chromium
def test_page_fits_a_phone(chromium):
    for peers, dark in itertools.product((0, 4, 60), (False, True)):  # not parameters: each would start a browser
        with (
            shown_to_browsers(state_of([f"peer-{k}-{'x' * 50}" for k in range(peers)])) as shown,
            new_page(chromium, PHONE, dark) as (opened, seen),
        ):
            opened.goto(shown.address)
            opened.get_by_text("12 of 20").wait_for(timeout=TIMEOUT)
            assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE[0], (peers, dark)
            assert opened.locator("tr[data-peer]").count() == min(peers, 20), (peers, dark)
            assert seen.problems == [], (peers, dark)


@needs_chromium
def test_phone_shows_cells_of_weights_and_bytes_from_zero(chromium):
    state = state_of(["bob", "carol"], rounds=5)
    for row in state["history"]:
        row["bytes_in"] = row["bytes_out"] = 39_400 + 60 * row["round"]
    del state["budget"]
    with shown_to_browsers(state) as shown, new_page(chromium, PHONE) as (opened, _):
        opened.goto(shown.address)
        opened.locator("#weights .cells rect").first.wait_for(timeout=TIMEOUT)
        inside = """() => { const box = document.querySelector("#weights .scroll").getBoundingClientRect();
            return [...document.querySelectorAll("#weights .scroll rect")].map((cell) => cell.getBoundingClientRect())
                .filter(({ left, right }) => left >= box.left - 1 && right <= box.right + 1).length; }"""
        assert opened.evaluate(inside) == 5 * 3
        assert opened.locator("#bytes text[text-anchor=end]").first.text_content() == "0"


@needs_chromium
def test_many_rounds_are_bundled_in_points_of_their_means(chromium):
    points = """() => ["learning", "bytes"].map((id) =>
        document.querySelector(`#${id} path.line`).getAttribute("d").split(/[ML]/).length - 1)"""
    for rounds, size in ((120, 1), (400, 4)):
        with shown_to_browsers(state_of(["bob"], rounds) | {"rounds": 400}) as shown, new_page(chromium) as (opened, _):
            opened.goto(shown.address)
            opened.locator("#bytes path.line").first.wait_for(state="attached", timeout=TIMEOUT)
            assert opened.evaluate(points) == [rounds // size] * 2
            assert ("mean of 4 rounds" in opened.locator("#learning").inner_text()) is (size > 1)


@needs_chromium
def test_member_that_was_removed_is_named_as_removed(chromium):
    state = state_of(["bob", "carol"], rounds=5)
    state["peers"] = [peer for peer in state["peers"] if peer["name"] != "bob"]
    state["history"][-1]["weights"] = {"alice": 0.5, "carol": 0.5}
    with shown_to_browsers(state) as shown, new_page(chromium) as (opened, _):
        opened.goto(shown.address)
        opened.locator("#weights .names span").first.wait_for(timeout=TIMEOUT)
        assert opened.locator("#weights .names span").all_inner_texts() == ["alice", "bob (removed)", "carol"]
        assert "bob (its model last counted in round 4)" in opened.locator("#peers .removed").inner_text()


@needs_chromium
def test_long_lists_are_folded_until_the_reader_opens_them(chromium):
    names = [f"peer-{k:03}" for k in range(60)]
    state = state_of(names)
    for peer in state["peers"]:
        peer["state"] = "suspected" if peer["name"] == "peer-059" else "connected"
    with shown_to_browsers(state) as shown, new_page(chromium) as (opened, _):
        opened.goto(shown.address)
        rows = opened.locator("tr[data-peer] > th")
        rows.first.wait_for(timeout=TIMEOUT)
        assert rows.all_inner_texts() == [*names[:19], "peer-059"]
        button = opened.locator("#peers + button")
        button.click()
        assert rows.all_inner_texts() == names
        assert button.get_attribute("aria-expanded") == "true"
        button.press("Enter")
        assert rows.count() == 20


@needs_chromium
def test_page_shows_round_beyond_the_total_alone(chromium):
    with shown_to_browsers(state_of(["bob"]) | {"rounds": 10}) as shown, new_page(chromium) as (opened, seen):
        opened.goto(shown.address)
        tile = opened.locator("#tiles .tile:has(> span:text-is('Round')) strong")
        tile.wait_for(timeout=TIMEOUT)
        assert tile.inner_text() == "12"
        assert opened.title().endswith(": round 12")
        assert seen.problems == []


@needs_chromium
def test_page_that_missed_rounds_fetches_full_status(chromium):
    with shown_to_browsers(state_of(["bob"], rounds=2)) as shown, new_page(chromium) as (opened, _):
        opened.goto(shown.address)
        opened.get_by_text("2 of 20").wait_for(timeout=TIMEOUT)
        shown.status_observer.state.update(state_of(["bob"], rounds=400) | {"rounds": 500})
        opened.get_by_text("400 of 500").wait_for(timeout=TIMEOUT)
        assert opened.locator("#weights .cells text").all_text_contents() == ["371", "400"]
        with opened.expect_response(lambda answer: answer.url.endswith("/status.json"), timeout=TIMEOUT):
            pass


# Metrics of the dashboard

GRAFANA = Path(__file__).parents[3] / "examples" / "grafana"


def dashboard_metrics():
    """Return the metrics that the dashboard and its README use, and the patterns for those named after the task."""
    dashboard = json.loads((GRAFANA / "p2pfl.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]
    text = "\n".join([*queries, (GRAFANA / "README.md").read_text().partition("\n## Alarms\n")[2]])
    patterns = set(re.findall(r'__name__=~"([^"]+)"', text))
    return set(re.findall(r"\bp2pfl_\w+", re.sub(r'__name__=~"[^"]+"', "", text))), patterns


def missing_metrics(figures):
    """Return the metrics of the dashboard that are missing in a text for Prometheus."""
    there = set(re.findall(r"^# TYPE (\w+)", figures, re.MULTILINE))
    names, patterns = dashboard_metrics()
    return {name for name in names if name not in there} | {
        pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in there)
    }


def test_dashboard_queries_only_existing_metrics():
    names, patterns = dashboard_metrics()
    assert len(names) > 15
    assert len(patterns) == 2
    assert missing_metrics(metrics.text(state_of(["bob"])).decode()) == set()
    assert "p2pfl_round" in missing_metrics("")


def test_dashboard_panels_do_not_overlap():
    panels = [panel["gridPos"] for panel in json.loads((GRAFANA / "p2pfl.json").read_text())["panels"]]
    places = [(p["x"] + x, p["y"] + y) for p in panels for x in range(p["w"]) for y in range(p["h"])]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24


TOML = """
rounds = 1000000
seed = 3
deadline = 10.0
evaluate_every = 5
[task]
name = "digits"
samples = 60
[policy]
name = "random"
neighbours = 2
[budget]
models = 4
"""


@needs_chromium
def test_page_shows_killed_peer_suspected_until_restarted(tmp_path, chromium):
    names = ("alice", "bob", "carol")
    with processes(tmp_path, names, TOML) as federation, new_page(chromium) as (opened, seen):
        (port,) = free_ports(1)
        federation.start("alice", changes=[f"status_port={port}"])
        federation.start("bob", "carol")
        federation.until_round("alice", 3)
        address = federation.status("alice")["page"]
        assert address == f"http://127.0.0.1:{port}/"
        opened.goto(address)

        def row(name, state):
            """Wait until a peer is shown in a state; return its cells."""
            line = opened.locator(f'tr[data-peer="{name}"][data-state="{state}"]')
            line.wait_for(timeout=TIMEOUT)
            return {label: line.locator(f"td[data-label={label}]").inner_text() for label in ("state", "reason", "link")}

        for name in ("bob", "carol"):
            assert row(name, "connected") == {"state": "connected", "reason": "", "link": "direct"}
        assert opened.locator("#link").inner_text() == "live"

        federation.signal("carol", signal.SIGKILL)
        gone = row("carol", "suspected")
        assert gone["reason"]
        assert gone["link"] == "none"
        federation.until(lambda: federation.status("alice")["peers"][1]["state"] == "suspected", "status says the same")
        assert row("bob", "connected")["reason"] == ""

        federation.wait("carol")
        federation.start("carol")
        assert row("carol", "connected") == {"state": "connected", "reason": "", "link": "direct"}
        federation.until(lambda: "carol" in federation.status("alice")["history"][-1]["weights"], "carol is learned with")
        opened.locator("#chosen").get_by_text("carol").wait_for(timeout=TIMEOUT)

        assert all(asked.startswith(address) for asked in seen.requests)
        assert seen.problems == []
        with urllib.request.urlopen(f"{address}metrics", timeout=60) as figures:
            assert missing_metrics(figures.read().decode()) == {"p2pfl_coordinator_problem"}  # without a coordinator

        federation.signal("alice", signal.SIGKILL)
        opened.get_by_text("disconnected since").wait_for(timeout=TIMEOUT)
        assert row("bob", "connected")  # the last known state remains visible
        federation.wait("alice")
        federation.start("alice", changes=[f"status_port={port}"])
        opened.locator("#link").get_by_text("live").wait_for(timeout=TIMEOUT)
        row("carol", "connected")
        assert all("ERR_CONNECTION" in problem or "ERR_EMPTY" in problem for problem in seen.problems), seen.problems
        assert all(asked.startswith(address) for asked in seen.requests)


def test_metrics_have_scores_and_penalties_of_peers():
    bob = {
        "name": "bob",
        "state": "left out",
        "round": 3,
        "score": 102,
        "penalties": {"refused models": 2, "equivocation": 1},
    }
    text = metrics.text({"state": "running", "peers": [bob], "distrust": 10}).decode()
    assert 'p2pfl_peer_score{peer="bob"} 102.0' in text
    assert 'p2pfl_peer_penalties_total{kind="refused models",peer="bob"} 2.0' in text
    assert 'p2pfl_peer_state{peer="bob",state="left out"} 1.0' in text
    assert "p2pfl_distrust 10.0" in text
