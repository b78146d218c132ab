"""Judges of what a node says to others: its TLS listener, its metrics, and its traffic through MQTT brokers of others."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from p2pfl.node.cli.demo import free_ports
from p2pfl.node.cli.main import main
from p2pfl.node.status.endpoints import text
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.transport import AccessControl
from p2pfl.protocols.transports.tls import TlsTransport
from scripts.tools.judges import CannotRunError, Judge, Verdict, distribution, find_program, npm, program, run
from scripts.tools.judges.shown import MEMBERS, status

PATIENCE = 180.0  # seconds for a federation to do its rounds


# ---- TLS

OLD = {"TLS 1.0": "-tls1", "TLS 1.1": "-tls1_1", "TLS 1.2": "-tls1_2"}
"""Versions that a node refuses, and OpenSSL's options for them."""


class _Nobody:
    """Handler and access control of a listener without members."""

    federation = bytes(16)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: None


@contextmanager
def listener() -> Iterator[int]:
    """Listen as a node does, in a thread; yield the port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def listen() -> TlsTransport:
        access: AccessControl = _Nobody()  # type: ignore[assignment]
        transport = TlsTransport("127.0.0.1:0", Identity.from_seed(bytes(range(32))), access, 1 << 20)
        await transport.listen(_Nobody())
        return transport

    transport = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    try:
        yield int(transport.address.rpartition(":")[2])
    finally:
        asyncio.run_coroutine_threadsafe(transport.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def judge_tls() -> Verdict:
    """Scan a listener with sslscan: TLS 1.3 alone, no compression, no heartbeat, strong groups, an Ed25519 certificate."""
    with listener() as port, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scan.xml")
        done = run("sslscan", "--no-colour", "--show-certificate", f"--xml={path}", f"127.0.0.1:{port}")
        if not path.is_file():
            raise CannotRunError(f"sslscan failed: {done.stdout.strip().splitlines()[-1]}")
        test = ElementTree.parse(path).getroot().find("ssltest")
    if test is None:
        return Verdict(["sslscan reached no TLS listener"])
    enabled = [f"{each.get('type')} {each.get('version')}" for each in test.iter("protocol") if each.get("enabled") == "1"]
    violations = [f"{name} is accepted" for name in enabled if name != "tls 1.3"]
    violations += ["TLS 1.3 is not accepted"] * ("tls 1.3" not in enabled)
    violations += ["compression"] * any(each.get("supported") == "1" for each in test.iter("compression"))
    violations += [
        f"heartbleed in {each.get('sslversion')}" for each in test.iter("heartbleed") if each.get("vulnerable") == "1"
    ]
    ciphers = [each.get("cipher", "") for each in test.iter("cipher")]
    violations += [f"weak cipher {name}" for name in ciphers if not re.match(r"TLS_(AES|CHACHA20)", name)]
    return Verdict(violations, f"{', '.join(enabled)}; {len(ciphers)} ciphers")


def judge_alert() -> Verdict:
    """Offer older versions of TLS with OpenSSL: the answer is the alert protocol_version (RFC 8446, 6.2)."""
    violations = []
    with listener() as port:
        for version, option in OLD.items():
            done = run("openssl", "s_client", option, "-cipher", "ALL:@SECLEVEL=0", "-connect", f"127.0.0.1:{port}")
            if "alert protocol version" not in done.stdout:
                said = next((line for line in done.stdout.splitlines() if "error" in line), "nothing")
                violations.append(f"{version}: no alert protocol_version, but {said[-80:]}")
    return Verdict(violations, f"{len(OLD)} versions")


# ---- metrics


def judge_metrics() -> Verdict:
    """Read /metrics with the parser of prometheus-client, which finds duplicate and malformed samples."""
    from prometheus_client.parser import text_string_to_metric_families

    violations, samples = [], 0
    for members in MEMBERS:
        state = status(members)
        families = list(text_string_to_metric_families(text(state).decode()))
        found = [(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples]
        samples += len(found)
        violations += [
            f"{members} members: {name} twice" for name, _ in sorted({each for each in found if found.count(each) > 1})
        ]
        violations += [f"{members} members: {family.name} has no help" for family in families if not family.documentation]
        peers = {dict(labels)["peer"] for name, labels in found if name == "p2pfl_peer_state"}
        violations += [f"{members} members: peers {len(peers)}"] * (len(peers) != members - 1)
    return Verdict(violations, f"{samples:,} samples")


def judge_metric_names() -> Verdict:
    """Ask promtool to check names, types and help of /metrics."""
    lines: list[str] = []
    for members in MEMBERS:
        done = subprocess.run(
            [find_program("promtool"), "check", "metrics"],
            input=text(status(members)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        lines += [line for line in done.stdout.decode().splitlines() if line.strip()]
    return Verdict(list(dict.fromkeys(lines)), f"{len(MEMBERS)} answers")


# ---- brokers

NAMES = "alice", "bob", "carol"
ROUNDS, RESTART = 24, 6  # rounds in all, and the round from which the broker is killed and started again
AEDES = """
const [aedes, port] = process.argv.slice(1);
const [{ Aedes }, net] = await Promise.all([import(`${aedes}/aedes.js`), import("node:net")]);
const broker = await Aedes.createBroker();
net.createServer(broker.handle).listen(Number(port), "127.0.0.1");
"""
AMQTT = """
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""
MOSQUITTO = "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nuser root\n"


def _amqtt(folder: Path, port: int) -> list[str]:
    path = folder / "amqtt.yaml"
    path.write_text(AMQTT.format(port=port))
    return [find_program("amqtt"), "-c", str(path)]


def _aedes(folder: Path, port: int) -> list[str]:
    return [find_program("node"), "--input-type=module", "--eval", AEDES, "--", str(npm.package("aedes")), str(port)]


def _mosquitto(folder: Path, port: int) -> list[str]:
    path = folder / "mosquitto.conf"
    path.write_text(MOSQUITTO.format(port=port))
    return [find_program("mosquitto"), "-c", str(path)]


def judge_broker(command: Callable[[Path, int], Sequence[str]]) -> Verdict:
    """Run a federation whose nodes meet at a broker alone, and kill and restart the broker between its rounds."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p2pfl-judges-")))
        port, *ports = free_ports(1 + len(NAMES))
        broker = _start(stack, command(folder, port), folder / "broker.log")
        _until(lambda: _answers(port), "the broker to listen", broker)
        _federate(folder, port, ports)
        nodes = {}
        for name in NAMES:
            options = ["--until-done", "--set", "addresses={}", "--set", 'advertise=["127.0.0.1:9"]']
            nodes[name] = _start(
                stack, [sys.executable, "-m", "p2pfl.node", "run", name, *options], folder / f"{name}.log", folder
            )
        _until(lambda: _status(folder, NAMES[0])["round"] >= RESTART, f"round {RESTART}", *nodes.values())
        broker.kill()
        broker.wait()
        broker = _start(stack, command(folder, port), folder / "broker.log")
        _until(lambda: all(node.poll() is not None for node in nodes.values()), f"{ROUNDS} rounds", broker)
        found = [_faults(name, node, _status(folder, name)) for name, node in nodes.items()]
    return Verdict([fault for faults in found for fault in faults], f"{len(NAMES)} nodes, {ROUNDS} rounds, 1 restart")


def _faults(name: str, node: subprocess.Popen[bytes], state: dict[str, Any]) -> list[str]:
    """Return what went wrong at one node: it ended early, or learned alone before or after the restart."""
    faults = [f"{name} ended with {node.returncode}"] * bool(node.returncode)
    faults += [f"{name} stopped in round {state['round']}"] * (state["round"] != ROUNDS)
    models = [row.get("models", 0) for row in state["history"]]
    for part, counts in (("before", models[:RESTART]), ("after", models[-RESTART:])):
        if sum(counts) < len(counts):
            faults.append(f"{name} received {sum(counts)} models in {len(counts)} rounds {part} the restart")
    faults += [f"{name}: {kind}: {count}" for kind, count in state.get("faults", {}).items()]
    return faults


def _federate(folder: Path, broker: int, ports: Sequence[int]) -> None:
    first, *others = NAMES
    for k, (name, port) in enumerate(zip(NAMES, ports, strict=True)):
        place = ["--listen", f"127.0.0.1:{port}", "--broker", f"mqtt://127.0.0.1:{broker}", "--part", f"{k}/{len(NAMES)}"]
        _call(folder, "init", name, *place)
    changes = ["--set", f"members={len(NAMES)}", "--set", f"rounds={ROUNDS}", "--set", "policy.neighbours=2"]
    _call(folder, "federation", "create", first, "--backup", "admission-key.backup", *changes)
    for name in others:
        line = _call(folder, "request", name).strip()
        _call(folder, "admit", first, line, "--out", f"{name}.admission")
        _call(folder, "join", name, f"{name}.admission", "--yes")


def _call(folder: Path, *arguments: str) -> str:
    """Run a command of p2pfl-node in this process, and return what it prints."""
    with chdir(folder), redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as complaint:
        status = main(list(arguments))
    if status:
        raise CannotRunError(f"p2pfl-node {' '.join(arguments[:2])}: {complaint.getvalue().strip()}")
    return printed.getvalue()


def _status(folder: Path, name: str) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / name / "status.json").read_bytes()))
    return {"round": 0, "history": []}


def _start(stack: ExitStack, command: Sequence[str], log: Path, folder: Path | None = None) -> subprocess.Popen[bytes]:
    written = stack.enter_context(log.open("ab"))
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=written, stderr=written)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _until(condition: Callable[[], bool], what: str, *processes: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline or any(process.poll() for process in processes):
            raise CannotRunError(f"waited in vain for {what}")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _version_of_sslscan() -> str:
    found = re.search(r"\d+(\.\d+)+", run("sslscan", "--no-colour", "--version").stdout)
    return f"sslscan {found[0]}" if found else "sslscan"


def _version_of_mosquitto() -> str:
    found = re.search(r"mosquitto version [\d.]+", run("mosquitto", "-h").stdout)
    return found[0] if found else "mosquitto"


ROUNDS_PASS = "a federation at this broker does its rounds, through a restart of the broker under load"
JUDGES = [
    Judge("tls", _version_of_sslscan, "the listener speaks TLS 1.3 alone", judge_tls),
    Judge("alert", program("openssl", "version"), "older versions are told protocol_version", judge_alert),
    Judge("metrics", distribution("prometheus-client"), "its parser reads /metrics", judge_metrics),
    Judge("metric-names", program("promtool", "--version"), "promtool accepts /metrics", judge_metric_names),
    Judge("amqtt", distribution("amqtt"), ROUNDS_PASS, lambda: judge_broker(_amqtt)),
    Judge("aedes", lambda: npm.version("aedes"), ROUNDS_PASS, lambda: judge_broker(_aedes)),
    Judge("mosquitto", _version_of_mosquitto, ROUNDS_PASS, lambda: judge_broker(_mosquitto)),
]
