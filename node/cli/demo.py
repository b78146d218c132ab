"""p2pfl-node demo: a temporary federation on this machine, with a process for each node and a table of their progress.

With a broker, it is Mosquitto if that is installed, otherwise amqtt, which is written in Python.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from p2pfl._util.console import fail
from p2pfl._util.printable import byte_size, plural, to_json
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import agreement, loading, membership_changes
from p2pfl.node.federation import join as joining
from p2pfl.node.folder import config
from p2pfl.node.settings import DEFAULT_TASK
from p2pfl.node.status import reader
from p2pfl.node.status.observer import describe_progress
from p2pfl.policies import make_policy
from p2pfl.task import Part, make_task

NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy")
SAMPLES = 40  # training images of each node: so few that peers' models help
RATE = 0.1  # learning rate for so few samples
STAGES = ("trained", "merged")
OUTPUT = "output"  # file in the node's folder
States = dict[str, dict[str, Any]]
STARTING = 30.0  # seconds for the broker to answer
_MOSQUITTO = "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n"


def demo(nodes: int, rounds: int, policy: str, as_json: bool, through_broker: bool = False) -> int:
    """Run processes that learn digits together, then each of them alone, and compare; return the exit code.

    Args:
        nodes: number of processes.
        through_broker: whether the nodes reach each other through a broker on this machine only.

    Raises:
        ConfigurationError: an invalid number, or a policy that cannot be created.
    """
    if not 2 <= nodes <= len(NAMES):
        raise ConfigurationError(f"--nodes must be from 2 to {len(NAMES)}, got {nodes}")
    if rounds < 1:
        raise ConfigurationError(f"--rounds must be 1 or more, got {rounds}")
    if ":" in policy and (here := str(Path.cwd())) not in sys.path:  # the user's own policy may be there
        sys.path.append(here)
    make_policy(policy, {})
    make_task(DEFAULT_TASK, {"samples": SAMPLES, "lr": RATE}, Part(0, nodes), 0)  # what is missing is said without a folder
    names = NAMES[:nodes]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end processes and remove folders in this case as well
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="p2pfl-demo-"))
        broker = stack.enter_context(local_broker()) if through_broker else ""
        together = _run(_federation(Path(folder) / "together", names, rounds, policy, broker), "together", as_json)
        alone = _run(_hermits(Path(folder) / "alone", names, rounds), "alone", as_json)
    for name in names:
        for states in (together, alone):
            if "result" not in states[name]:
                return fail(f"{name} did not finish: {states[name].get('reason') or states[name]['output']}")
    accuracy = {name: _accuracy(together[name], alone[name]) for name in names}
    if as_json:
        print(to_json({"accuracy": accuracy, "nodes": together}))
    else:
        _print_accuracy(accuracy)
    return 0


def _federation(root: Path, names: Sequence[str], rounds: int, policy: str, broker: str) -> dict[str, Path]:
    """Create the folders of the nodes of one federation, which use a broker or fixed ports on loopback."""
    addresses = dict(zip(names, (f"127.0.0.1:{port}" for port in free_ports(len(names))), strict=True))
    for k, (name, address) in enumerate(addresses.items()):
        config.create(root / name, name, address, f"{k}/{len(names)}", policy=policy, broker=broker)
        others = {other: where for other, where in addresses.items() if other != name}
        _complete(root / name, rounds, len(names), others, broker)
        _bring(policy, root / name)
    first = root / names[0]
    ready = loading.load(first)
    tables = agreement.draft("demo", ready.config, loading.task_of(ready))
    membership_changes.create_federation(first, tables, root / "backup.pem")
    for name in names[1:]:
        membership_changes.admit(first, membership_changes.request(root / name), "participant", root / f"{name}.admission")
        joining.join(root / name, (root / f"{name}.admission").read_text())
    return {name: root / name for name in names}


def _bring(policy: str, folder: Path) -> None:
    """Copy the user's own policy from the current folder, if it is there, to the place in which a node finds it."""
    module = Path(policy.partition(":")[0].partition(".")[0])
    if ":" not in policy:
        return
    if module.is_dir():
        shutil.copytree(module, folder / module)
    elif module.with_suffix(".py").exists():
        shutil.copy(module.with_suffix(".py"), folder)


def _hermits(root: Path, names: Sequence[str], rounds: int) -> dict[str, Path]:
    """Create the folders of the same nodes, each without peers."""
    for k, name in enumerate(names):
        config.create(root / name, name, "127.0.0.1:0", f"{k}/{len(names)}", policy="local")
        _complete(root / name, rounds, 1, {})
    return {name: root / name for name in names}


def _complete(folder: Path, rounds: int, members: int, addresses: Mapping[str, str], broker: str = "") -> None:
    path = folder / config.CONFIG
    text = path.read_text()
    for before, after in {
        "rounds = 10": f"rounds = {rounds}",
        "members = 1": f"members = {members}",
        "mdns = true": "mdns = false",
        "direct = true": f"direct = {'false' if broker else 'true'}",
        "[policy]": f"samples = {SAMPLES}\nlr = {RATE}\n\n[policy]",
    }.items():
        text = text.replace(before, after, 1)
    path.write_text(text + "".join(f'{name} = "{address}"\n' for name, address in addresses.items()))


def _run(folders: Mapping[str, Path], title: str, quiet: bool) -> States:
    """Run a process for each folder until all have ended; return their last states, with their `output`."""
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "p2pfl.node", "run", str(folder), "--until-done"],
                    stdout=stack.enter_context((folder / OUTPUT).open("wb")),
                    stderr=subprocess.STDOUT,
                )
            )
            for name, folder in folders.items()
        }
        for process in processes.values():  # on exit, so that no process outlives the demo
            stack.callback(process.wait)
        for process in processes.values():  # these run before the previous ones
            stack.callback(process.kill)
        show = _lines(title) if quiet or not sys.stdout.isatty() else stack.enter_context(_LiveTable(title))
        while any(process.poll() is None for process in processes.values()):
            if not quiet:
                show({name: reader.read(folder / config.STATUS) or {} for name, folder in folders.items()})
            time.sleep(0.1)
        states: States = {}
        for name, folder in folders.items():
            output = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")
            states[name] = (reader.read(folder / config.STATUS) or {}) | {"output": output}
        if not quiet:
            show(states)
    return states


def _lines(title: str) -> Callable[[States], None]:
    """Return a function that prints a line for each round of each node as it ends."""
    seen: set[tuple[str, int]] = set()

    def show(states: States) -> None:
        for name, state in states.items():
            for row in state.get("history", []):
                if row.get("validation") is not None and (name, row["round"]) not in seen:
                    seen.add((name, row["round"]))
                    print(
                        f"{title}: {name}, round {row['round']}, accuracy {row['validation']:.3f},"
                        f" {plural(row['models'], 'model')}, {byte_size(row['bytes_in'])} in,"
                        f" {byte_size(row['bytes_out'])} out",
                        flush=True,
                    )

    return show


class _LiveTable:
    """Redraws a table in place on a terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._live = Live(console=Console(), refresh_per_second=10)

    def __enter__(self) -> _LiveTable:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def __call__(self, states: States) -> None:
        table = Table(title=self._title, title_justify="left")
        for column in ("node", "state", "round", "accuracy", "models", "in", "out"):
            table.add_column(column, justify="left" if column in ("node", "state") else "right")
        for name, state in states.items():
            rows = state.get("history", [])
            figures = [row["validation"] for row in rows if row.get("validation") is not None]
            table.add_row(
                name,
                state.get("state", "starting"),
                describe_progress(state.get("round", 0), state["rounds"]) if "rounds" in state else "0",
                f"{figures[-1]:.3f}" if figures else "",
                str(rows[-1]["models"]) if rows else "",
                byte_size(sum(row["bytes_in"] for row in rows)),
                byte_size(sum(row["bytes_out"] for row in rows)),
            )
        self._live.update(table, refresh=True)


def _accuracy(together: Mapping[str, Any], alone: Mapping[str, Any]) -> dict[str, float]:
    """Return a node's test accuracy alone and together, and that of its best model of each stage together."""
    stages = {stage: best["test"] for stage, best in together["by_stage"].items() if best.get("test") is not None}
    result = {"alone": alone["result"]["test_accuracy"], "together": together["result"]["test_accuracy"]}
    return result | {stage: stages[stage] for stage in STAGES if stage in stages}


def _print_accuracy(accuracy: Mapping[str, Mapping[str, float]]) -> None:
    columns = [key for key in ("alone", "together", *STAGES) if all(key in values for values in accuracy.values())]
    means = {key: sum(values[key] for values in accuracy.values()) / len(accuracy) for key in columns}
    table = Table()
    for column in ("node", *columns):
        table.add_column(column, justify="left" if column == "node" else "right")
    for name, values in {**accuracy, "mean": means}.items():
        table.add_row(name, *(f"{values[key]:.3f}" for key in columns))
    print("test accuracy of each node's model with the best validation loss:")
    Console(highlight=False).print(table)
    if "trained" in columns and "merged" in columns:
        print("together: the better one on validation data of the trained and the merged model")
    print(f"gain by learning together: {means['together'] - means['alone']:+.3f}")


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that no process listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def local_broker() -> Iterator[str]:
    """Run a broker without access rules on a free port of loopback; yield its URL.

    Raises:
        ConfigurationError: neither broker is installed, or it does not start.
    """
    with ExitStack() as stack:
        port = _free_port()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p2pfl-broker-")))
        folder.chmod(0o755)  # Mosquitto drops root privileges before it reads its file
        mosquitto = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
        if mosquitto is not None:
            (folder / "mosquitto.conf").write_text(_MOSQUITTO.format(port=port))
            command = [mosquitto, "-c", str(folder / "mosquitto.conf")]
        elif find_spec("amqtt") is not None:
            command = [sys.executable, "-m", "p2pfl.node.cli.demo", str(port)]
        else:
            raise ConfigurationError(
                "no MQTT broker is installed: apt install mosquitto, or pip install 'p2pfl-node[broker]'"
            )
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        stack.callback(process.kill)
        deadline = time.monotonic() + STARTING
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ConfigurationError(f"the broker did not start within {STARTING:g} s: {' '.join(command)}")
            time.sleep(0.05)
        yield f"mqtt://127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


async def _serve(port: int) -> None:
    from amqtt.broker import Broker

    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)  # until the parent process has ended
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
