"""Documentation: the site builds without a warning, links have targets, and the code of every page runs."""

import json
import re
import signal
import sys
import tomllib

import pytest

import p2pfl
from p2pfl.node.folder.config import STATUS
from scripts.tools.reference.pages import KINDS
from tests.support import brokers, forked
from tests.support.browser import DESKTOP, PHONE, browser, needs_chromium, page
from tests.support.namespaces import until
from tests.support.pages import DOCS, PAGES, blocks, commands
from tests.support.ports import free_ports
from tests.support.processes import PATIENCE
from tests.support.readme import bash
from tests.support.site_of_docs import broken, build

FEDERATION, BROKER = "tutorials/first-federation.md", "how-to/connect-through-a-broker.md"
MANAGE, WATCH = "how-to/manage-nodes.md", "how-to/watch-a-federation.md"
JOIN, OVERLAY = "how-to/join-through-a-broker.md", "how-to/use-an-overlay-network.md"
MORE, PROJECT = "how-to/train-more-rounds.md", "tutorials/own-project.md"
NODES = (
    FEDERATION,
    BROKER,
    JOIN,
    OVERLAY,
    MANAGE,
    MORE,
    WATCH,
    PROJECT,
)  # pages whose nodes keep running during further commands
ELSEWHERE = ("real-machines.md", "reproduced.md")  # test_real_machines.py and test_reproduced.py name the tests
OTHERS = [name for name in PAGES if name not in (*NODES, *ELSEWHERE) and any(block.kind == "sh" for block in blocks(name))]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "html"
    assert build(folder) == ""
    return folder


def test_blocks_of_pages_have_known_kinds():
    for kind, text in (block for name in PAGES for block in blocks(name)):
        assert kind in ("sh", "python", "toml", "text", "{toctree}", "{include}", *(f"{{{kind}}}" for kind in KINDS)), text
        if kind in ("python", "toml"):
            assert re.fullmatch(r"# ([a-z_]+/)?[a-z_]+\.(py|toml)", text.splitlines()[0]), "its first line names the file"


def test_every_extra_is_described():
    described = re.findall(r"^\| `([\w-]+)` \|", (DOCS / "how-to/install.md").read_text(encoding="utf-8"), re.M)
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(described) == sorted(project["optional-dependencies"])


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_code_of_page_runs(name, tmp_path):
    output = ""
    for command in commands(name, tmp_path, ports_of(name)):
        output += bash(shortened(command), tmp_path)
    check_tables(name, output)


def shortened(command):
    """Return shell commands whose simulations have no worker processes, and few rounds in the scenarios of the page."""
    command = re.sub(r"p2pfl-sim (run|sweep) (?=\S+\.toml)", r"p2pfl-sim \1 --set rounds=3 ", command)
    return re.sub(r"p2pfl-sim (run|sweep) ", r"p2pfl-sim \1 --engine local ", command)


def check_tables(page, output):
    """Compare the headings of the tables of a page with the output; figures may differ on other machines."""
    texts = [block.text for block in blocks(page) if block.kind == "text"]
    lines = [line for text in texts if "+- over" in text or text.startswith("┏") for line in text.splitlines()]
    printed = " ".join(re.sub("[│┃]", " ", output).split())
    for line in (line for line in lines if "accuracy" in line or "+- over" in line):
        assert " ".join(re.sub("[│┃]", " ", line).split()) in printed


def ports_of(page):
    """Return a free port for each port of a page, as text."""
    used = sorted(set(re.findall(r"\b41\d\d\b", "".join(block.text for block in blocks(page)))))
    return dict(zip(used, map(str, free_ports(len(used))), strict=True))


class Terminals:
    """Terminals in one folder; `p2pfl-node run` at the end of a block keeps its terminal.

    Args:
        others: replacements of texts of the page.
    """

    def __init__(self, folder, page, **others):
        self.folder, self.page = folder, page
        self.others = ports_of(page) | others
        self.running = {}
        self.printed = ""

    def type_all(self):
        """Type every block of the page; before the next one, wait until the nodes serve or wait for further nodes."""
        left = sum("p2pfl-node run" in block.text for block in blocks(self.page) if block.kind == "sh")
        for text in commands(self.page, self.folder, self.others):
            if "p2pfl-node demo" in text:
                continue  # tests/node/cli/test_demo.py runs it
            before, run, options = text.rstrip().partition("p2pfl-node run ")
            self.printed += bash(shortened(before), self.folder)
            if run:
                left -= 1
                self.leave_running(options.split())
                self.wait_until("waiting" if left else "serving")

    def leave_running(self, options):
        with (self.folder / f"{options[0]}.log").open("w") as log:
            command = [sys.executable, "-m", "p2pfl.node", "run", *options]
            self.running[options[0]] = forked.python(command, cwd=self.folder, stdout=log, stderr=log)

    def wait_until(self, state):
        def there():
            assert all(process.poll() is None for process in self.running.values()), self.logs()
            return {self.state(name) for name in self.running} == {state}

        until(there, self.logs, PATIENCE)

    def state(self, name):
        return self.status(name)["state"]

    def status(self, name):
        path = self.folder / name / STATUS
        return json.loads(path.read_text()) if path.exists() else {"state": ""}

    def logs(self):
        return {name: (self.folder / f"{name}.log").read_text() for name in self.running}

    def stop(self):
        """Send SIGINT, as Ctrl-C does, and wait."""
        for process in self.running.values():
            process.send_signal(signal.SIGINT)
        for process in self.running.values():
            process.wait(PATIENCE)


@pytest.fixture
def terminals(tmp_path):
    opened = []

    def of(page, **others):
        opened.append(Terminals(tmp_path, page, **others))
        return opened[0]

    yield of
    for each in opened:
        each.stop()


@pytest.mark.slow
def test_first_federation_page_runs(terminals, tmp_path):
    there = terminals(FEDERATION)
    there.type_all()
    assert list(there.running) == ["alice", "bob"]
    assert re.search(r"bob +connected +10 +direct ", there.printed)
    assert "waiting for members: 1 of 2" in there.logs()["alice"]
    assert (tmp_path / "model.safetensors").exists()
    assert re.search("finished; the (trained|merged) model of round", there.logs()["bob"])


@pytest.mark.slow
def test_project_page_runs(terminals, tmp_path):
    there = terminals(PROJECT)
    there.type_all()
    check_tables(PROJECT, there.printed)
    assert "Adam" in (tmp_path / "bob" / "task.py").read_text()
    assert there.printed.count("both tests passed") == 2
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.slow
def test_watch_page_runs(terminals):
    there = terminals(WATCH)
    there.type_all()
    assert "dora serving round 10 of 10" in there.printed


@pytest.mark.slow
def test_broker_page_runs(terminals):
    with brokers.mosquitto() as broker:
        there = terminals(BROKER, **{"mqtt://broker.example:1883": broker.url})
        there.type_all()
        assert "through the broker" in there.printed
        there.stop()


@pytest.mark.slow
def test_join_through_broker_page_runs(terminals):
    with brokers.mosquitto() as broker:
        there = terminals(JOIN, **{"mqtt://broker.example:1883": broker.url})
        there.type_all()
        assert "through the broker" in there.printed
        there.stop()


@pytest.mark.slow
def test_overlay_page_ends_with_direct_connection(terminals):
    there = terminals(OVERLAY, **{"10.88.0.2": "127.0.0.1", "10.88.0.3": "127.0.0.1"})
    there.type_all()
    assert "peer alice: connected directly" in there.printed


@pytest.mark.slow
def test_more_rounds_page_ends_with_more_rounds(terminals):
    there = terminals(MORE)
    there.type_all()
    assert "rounds: 20" in there.printed
    until(lambda: {there.status(name)["round"] for name in ("alice", "bob")} == {20}, there.logs, PATIENCE)
    there.wait_until("serving")


@pytest.mark.slow
def test_manage_page_ends_with_one_member(terminals, tmp_path):
    there = terminals(MANAGE)
    there.type_all()
    shown = there.printed.rpartition("federation: home\n")[2]
    assert re.findall(r"name (\w+), role", shown) == ["alice"]
    assert (tmp_path / "bob.backup" / "key.pem").exists()


@pytest.mark.slow
def test_every_link_of_the_site_has_a_target(site):
    assert list(broken(site)) == []


@pytest.mark.slow
def test_site_contains_options_and_keys_of_the_code(site):
    def text(name):
        return re.sub(r"<[^>]+>", "", (site / name).read_text(encoding="utf-8"))

    assert f"p2pfl {p2pfl.__version__}" in text("index.html")
    for option in ("--resume DIR", "--until-done", "--backup FILE", "p2pfl-sim data check"):
        assert option in text("reference/commands.html")
    for key in ("network.stretch", "compute.slowdown", "evaluate_every", "against"):
        assert key in text("reference/scenarios.html")
    assert "nverse temperature of the softmax" in text("reference/policies.html")


@pytest.mark.slow
def test_site_describes_every_public_name(site):
    described = set(re.findall(r'id="p2pfl\.(?:\w+\.)*(\w+)"', (site / "reference/api.html").read_text(encoding="utf-8")))
    assert set(p2pfl.__all__) - described == set()


def test_index_lists_every_page_once():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    for part in (re.findall(r"\]\(([\w/-]+)\.md\)", text), re.findall(r"^([\w-]+(?:/[\w-]+)?)$", text, re.M)):
        assert sorted(set(part)) == sorted(page.removesuffix(".md") for page in PAGES if page != "index.md")


def test_guides_have_goal_steps_and_problems():
    guides = [page for page in PAGES if page.startswith("how-to/")]
    assert guides
    for name in guides:
        text = (DOCS / name).read_text(encoding="utf-8")
        assert "\nAt the end, " in text, name
        assert re.search(r"^1\. ", text, re.M), name
        assert "\n## What can go wrong\n" in text, name


@needs_chromium
@pytest.mark.slow
def test_site_makes_no_external_requests(site):
    with browser() as chromium:
        for size, dark in ((DESKTOP, False), (PHONE, True)):
            for name in ("index.html", "reference/scenarios.html", "reference/api.html", "search.html"):
                with page(chromium, size, dark) as (opened, seen):
                    opened.goto((site / name).as_uri())
                    assert [url for url in seen.requests if not url.startswith("file:")] == []
                    assert seen.problems == []
                    width = opened.evaluate("document.documentElement.scrollWidth")
                    assert width <= size[0], f"{name} is wider than the screen"
