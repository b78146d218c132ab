"""Checks of `p2pfl-node doctor`, from the folder to the network.

Each check returns its finding, and the remedy in one line. Checks receive all input as plain arguments and change
nothing; they raise no error that the user could correct. They go from the inside to the outside: the folder and its
files, the task and the policy, the network (the port, multicast on the local network, a broker), and then the running
node and its links with the other members, from its status. A broker is tried with the packets of a node, without a node.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from p2pfl._util.atomic_files import reason
from p2pfl._util.machine import READING
from p2pfl._util.printable import plural
from p2pfl.errors import ConfigurationError
from p2pfl.installation import Finding, Need, check_extras, check_installation, needs_of_task, needs_of_trackers
from p2pfl.node.connectivity import without_password
from p2pfl.node.federation import loading
from p2pfl.node.federation.loading import LoadedNode
from p2pfl.node.federation.membership_file import check_name
from p2pfl.node.folder import config
from p2pfl.node.folder import config as folders
from p2pfl.node.folder.config import NodeConfig
from p2pfl.node.privacy_ledger import read_ledger
from p2pfl.node.status import reader
from p2pfl.node.status.reader import RUNNING
from p2pfl.node.status.snapshot import is_of_broker
from p2pfl.node.status.text import STALE, describe_omitted, duration, headline
from p2pfl.parameters import Layout
from p2pfl.protocols.addresses import PASSWORD, BrokerAddress, is_loopback, split_address
from p2pfl.protocols.errors import AddressError, IdentityError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.mqtt.broker_client import Bus, Message
from p2pfl.protocols.mqtt.connection import BrokerConnection, DeliveryMonitor, ProblemReport
from p2pfl.protocols.mqtt.packets import ECHO_PACKET

OLDEST = 2026  # a clock that shows an earlier year is wrong
TIMESYNC = Path("/run/systemd/timesync")
LEAST_FREE = 100_000_000  # bytes
NO_ANSWER = "start the broker, correct its address in node.toml, or open its port in the firewall"
ALL_SIZES = 30.0  # seconds for packets of all sizes to come back from the broker
GROUP = "224.0.0.251"  # group of multicast DNS, for which routers and firewalls have their rules
REMEDIES = {  # by a part of the reason why a peer is not connected; the first match applies
    "because its membership was revoked": "ask the owner of the admission key",
    "differs": "use the same settings on both nodes: compare p2pfl-node federation show, and the files of the task",
    "version": "upgrade the older of the two nodes",
    "stranger": "connect this node or the peer to the node with the admission key, so that it receives the newest members",
    "no address known": "run the peer; if it runs, add its address to [addresses] in node.toml, or use a broker",
    "not connected yet": "run the peer; if it runs, add its address to [addresses] in node.toml, or use a broker",
    "messages do not arrive": "run p2pfl-node doctor at the peer, and compare the limits and rules of the broker",
    "not present at the broker": "run the peer with the same broker",
    "connection refused": "run the peer, or correct its address: it does not listen there",
    "does not answer": "run the peer, and open its port in the firewall, or use a broker",
    "unreachable": "use an address in a network that both machines can reach, or use a broker",
    "no route to host": "use an address in a network that both machines can reach, or use a broker",
    "has left": "run the peer again",
}
BROKER_FIRST = "correct the problem of the broker first"
OTHERWISE = "run p2pfl-node doctor at the peer"
FATAL = ("because its membership was revoked", "differs", "version")  # reasons that end only when a person acts


def run_checks(folder: Path) -> list[Finding]:
    """Return the findings of all checks of a node's folder, its machine and its network.

    Raises:
        ConfigurationError: the folder does not exist.
    """
    if not folder.is_dir():
        config.check_folder_of_node(folder)
    state = reader.current_if_readable(folder)
    federation = check_federation(folder, state.get("revoked_by", ()))
    findings = check_installation()
    findings += [check_node(state), check_key(folder), check_folder(folder), check_disk(folder), check_clock(), federation]
    findings += check_ledger(folder)
    try:
        ready = loading.load(folder)
    except ConfigurationError as error:
        result, _, remedy = str(error).partition("; ")
        return [*findings, Finding("configuration", False, result, remedy or f"correct {folder / config.CONFIG}")]
    if (membership := ready.membership) is not None and federation.ok:
        try:
            check_name(membership, config.own_key(folder), ready.config.name, folder)
        except ConfigurationError as error:
            result, _, remedy = str(error).partition("; ")
            findings.append(Finding("name", False, result, remedy))
    if is_running(state) and state.get("tokens_unanswered"):
        remedy = f"start the node again with p2pfl-node run {folder} --passphrase-file FILE"
        findings.append(
            Finding("tokens", False, f"invitation tokens are not answered: {state['tokens_unanswered']}", remedy)
        )
    findings += check_extras(needs_of(ready.config))
    findings += _check_network(state, ready, may_run=federation.ok is not False)
    agreed = None if ready.agreement is None else ready.agreement.model.layout
    layout = check_layout(lambda: loading.task_of(ready, copies=READING).layout.shared, agreed, ready.config.data)
    return [*findings, layout]


def needs_of(own: NodeConfig) -> list[Need]:
    """Return the libraries that a node needs with its configuration."""
    found = needs_of_task(own.task, own.data)
    if own.broker:
        found.append(Need("the broker", "aiomqtt", "mqtt"))
    if own.status_port >= 0:
        found += [Need("the status page", module, "status") for module in ("aiohttp", "prometheus_client")]
    if own.privacy.epsilon:
        found.append(Need("the privacy budget", "dp_accounting", "privacy"))
    return [*found, *needs_of_trackers(own.track.tools)]


def _check_network(state: Mapping[str, Any], ready: LoadedNode, may_run: bool) -> list[Finding]:
    """Check the port, multicast, the broker and the peers: as the node runs with them, or as node.toml has them.

    Args:
        may_run: whether the node is a member, or trains alone. The peers of a former member are not mentioned.
    """
    own = ready.config
    if not is_running(state):
        configured = {"listen": own.listen if own.direct else "", "broker": own.broker, "mdns": own.mdns and own.direct}
        return [*_check_ways(configured, ready), *(_check_absent_peers(ready) if may_run else [])]
    network = state.get("network")
    if network is not None:
        return [*_check_ways(network, ready, state), *check_peers(state)]
    result = "is starting" if state["state"] == "starting" else "trains alone, without a port"
    return [Finding("port", None, f"not checked, because this node {result}")]


def _check_ways(network: Mapping[str, Any], ready: LoadedNode, state: Mapping[str, Any] | None = None) -> list[Finding]:
    """Check the ways in which others reach this node.

    Args:
        network: see p2pfl.node.connectivity.Connectivity.describe.
        state: status of the running node; None if it does not run.
    """
    own, findings = ready.config, []
    if network["listen"]:
        findings.append(check_port(network["listen"], state is not None, own.listen))
    else:
        findings.append(Finding("port", True, "not used: this node connects through the broker only"))
    if network["mdns"]:
        findings.append(check_multicast())
    if state is not None and state.get("broker"):
        findings.append(broker_problem(state["broker"]))
    elif network["broker"]:
        url = own.broker if without_password(own.broker) == network["broker"] else network["broker"]
        password = os.environ.get(PASSWORD)
        found = check_broker(url, _own_topic(ready), password)
        found = found if password else _without_password(found, url, connected=state is not None)
        findings.append(with_user_name(found, url, _own_key(ready.folder)))
    return findings


def with_user_name(found: Finding, url: str, key: str) -> Finding:
    """Return a failed trial of the broker, with its cause if the user name looks like a key, but is not this node's.

    Args:
        key: the public key of the node in hexadecimal; "" if it is unknown.
    """
    try:
        user = BrokerAddress.parse(url).user or ""
    except AddressError:
        return found
    # Another broker may have accounts of any name; only a former key is certainly wrong.
    if found.ok is not False or not key or user.lower() == key or not re.fullmatch(r"[0-9a-fA-F]{64}", user):
        return found
    remedy = f"make an account for {key} at the broker, and put this key into broker in node.toml"
    return Finding(found.check, False, f"{found.result}; the user name is not this node's key", remedy)


def _without_password(found: Finding, url: str, connected: bool) -> Finding:
    """Return a finding of a trial of the broker, without the password in the environment, in the light of that.

    Args:
        connected: whether the node runs, and has no problem with the broker.
    """
    try:
        has_password = bool(BrokerAddress.parse(url).password)
    except AddressError:
        has_password = True
    if has_password or found.ok is not False or "refuses this node" not in found.result:
        return found
    where = found.result.partition(" refuses this node")[0]
    if connected:
        result = (
            f"the running node is connected to {where}; not tried from here, because {PASSWORD} is not set in this terminal"
        )
        return Finding(found.check, True, result)
    remedy = f"set {PASSWORD} in this terminal as for p2pfl-node run, and run this command again"
    return Finding(found.check, False, f"{found.result}; {PASSWORD} is not set in this terminal", remedy)


def _check_absent_peers(ready: LoadedNode) -> list[Finding]:
    if ready.membership is None or len(ready.membership.members) < 2:
        return []
    result = "not checked, because this node does not run"
    return [Finding("peers", None, result, f"run p2pfl-node run {ready.folder}, and p2pfl-node doctor {ready.folder} again")]


def _own_topic(ready: LoadedNode) -> str:
    """Return a topic to which this node may publish and subscribe; "" without a federation or a key."""
    key = _own_key(ready.folder)
    return "" if ready.membership is None or not key else f"p2pfl/{ready.membership.federation.hex()}/{key}/{key}"


def _own_key(folder: Path) -> str:
    """Return the public key of the node in hexadecimal; "" if it cannot be read."""
    try:
        return config.own_key(folder).hex()
    except ConfigurationError:
        return ""


# Folder
def check_key(folder: Path) -> Finding:
    """Check the node's private key."""
    path = folder / folders.KEY
    try:
        identity = Identity.load(path)
    except IdentityError as error:
        return Finding("key", False, str(error), "" if "chmod" in str(error) else folders.KEY_REMEDY)
    return Finding("key", True, f"intact, and readable by its owner only: {identity.public.hex()}")


def check_folder(folder: Path) -> Finding:
    """Check whether other users of the machine can enter the node's folder."""
    open_to = folders.open_to_others(folder)
    if open_to:
        result, _, remedy = open_to.partition("; ")
        return Finding("folder", None, f"{result}: they can read its files, or stop the node by locking them", remedy)
    return Finding("folder", True, "accessible to its owner only")


def check_ledger(folder: Path) -> list[Finding]:
    """Return a finding about the ledger of a privacy budget; none if there is no ledger."""
    try:
        found = read_ledger(folder)
    except ConfigurationError as error:
        result, _, remedy = str(error).partition("; ")
        return [Finding("ledger", False, result, remedy)]
    if found is None:
        return []
    without = "; the node has trained without a privacy budget too" if found.unprotected else ""
    return [Finding("ledger", True, f"{found.made:,} private steps{without}")]


def check_disk(folder: Path, needed: int = 0) -> Finding:
    """Check whether checkpoints can be written.

    Args:
        needed: bytes that the node will write. The check requires at least four times its newest checkpoint, and 100
            MB.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
        free = shutil.disk_usage(folder).free
        checkpoint = folder / folders.CHECKPOINT
        needed = max(needed, LEAST_FREE, 4 * (checkpoint.stat().st_size if checkpoint.exists() else 0))
    except OSError as error:
        return Finding("disk", False, f"cannot write to {folder}: {reason(error)}", "free some space, or check its owner")
    if free < needed:
        result = f"{free / 1e6:,.0f} MB are free in {folder}, but the node may need {needed / 1e6:,.0f} MB"
        return Finding("disk", False, result, "free some space, or move the folder to another disk")
    return Finding("disk", True, f"{free / 1e9:,.1f} GB are free")


def check_federation(folder: Path, revoked_by: Sequence[str] = ()) -> Finding:
    """Check the federation file, the membership, and whether this node is a member, or has requested to be one.

    Args:
        revoked_by: members that have refused this node as a former member.
    """
    from p2pfl.node.federation.membership_file import (
        awaited_federation,
        describe_pending,
        describe_refusal,
        load_federation,
        way_back,
    )

    try:
        membership = load_federation(folder)
        own = Identity.load(folder / folders.KEY).public
    except ConfigurationError as error:
        result, _, remedy = str(error).partition("; ")
        return Finding("federation", False, result, remedy)
    except IdentityError:
        return Finding("federation", None, "not checked, because the key of the node is missing or damaged")
    if membership is None and (awaited := awaited_federation(folder)):
        result, _, remedy = describe_pending(awaited, folder).partition("; ")
        return Finding("federation", None, result, remedy)
    if membership is None:
        remedy = f"run p2pfl-node federation create {folder} --backup FILE, or p2pfl-node join {folder}"
        return Finding("federation", None, "this node belongs to no federation", remedy)
    name = membership.file.name
    if refusal := describe_refusal(membership, own, folder):
        result, _, remedy = refusal.partition("; ")
        return Finding("federation", False, result, remedy)
    if revoked_by:
        result = f"the membership of this node in {name} was revoked, according to {', '.join(revoked_by)}"
        return Finding("federation", False, result, way_back(folder))
    return Finding(
        "federation",
        True,
        f"{name}, members: {len(membership.members)}, membership version: {membership.membership_version}",
    )


def check_layout(make: Callable[[], Layout], agreed: str | None, data: str = "") -> Finding:
    """Check whether the node's task can be made, with the model that the federation has agreed on.

    Args:
        make: creates the task and returns its layout; may raise ConfigurationError.
        agreed: the fingerprint of the federation's layout, in hexadecimal; None if the node belongs to no federation.
        data: path of the node's own data file; "" for none. An error that names this file is one of its content.
    """
    try:
        layout = make()
    except ConfigurationError as error:
        of_file = data and str(Path(data).expanduser()) in str(error)
        remedy = "put the right file there, or name another one in node.toml" if of_file else "correct it in node.toml"
        return Finding("task", False, str(error), remedy)
    size, own = f"{plural(layout.size, 'value')} in {plural(len(layout.shapes), 'tensor')}", layout.fingerprint.hex()
    if agreed is None:
        return Finding("task", True, size)
    if own != agreed:
        result = f"the task has a model of the layout {own}, the federation one of {agreed}"
        return Finding("task", False, result, "use the same version and the same options of the task as the other members")
    return Finding("task", True, f"{size}, as in the federation")


def check_clock(
    wall: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    timesync: Path = TIMESYNC,
) -> Finding:
    """Check the clock, on which the expiry of invitations depends. Nothing else of a node depends on it.

    Args:
        wall, monotonic: return seconds.
        pause: waits for a number of seconds.
        timesync: the folder of systemd's time synchronisation.
    """
    remedy = "set the clock, or synchronise it: timedatectl set-ntp true"
    year = datetime.fromtimestamp(wall(), UTC).year
    if not OLDEST <= year < OLDEST + 50:
        return Finding("clock", False, f"it shows the year {year}, so invitations expire at the wrong time", remedy)
    before = wall() - monotonic()
    pause(0.2)
    moved = wall() - monotonic() - before
    if abs(moved) > 0.1:
        return Finding("clock", None, f"it was just moved by {moved:+.1f} s; invitations expire by this clock", remedy)
    if (timesync / "synchronized").exists():
        return Finding("clock", True, "synchronised")
    if timesync.exists():
        return Finding("clock", None, "not synchronised yet; invitations expire by this clock", remedy)
    return Finding("clock", True, f"plausible: {datetime.fromtimestamp(wall(), UTC):%Y-%m-%d %H:%M} UTC")


def check_port(listen: str, running: bool = False, configured: str = "") -> Finding:
    """Check whether the node can listen at its address, and whether others can reach it there.

    Args:
        listen: address at which the running node listens, or will listen.
        running: whether a process runs this node, which then holds the port.
        configured: address in node.toml, if an option can have replaced it.
    """
    other = f" (node.toml has {configured})" if configured not in ("", listen) else ""
    try:
        host, port = split_address(listen)
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        if not running:
            for family, _, _, _, address in found[:1]:
                with socket.create_server((address[0], address[1]), family=family):
                    pass
    except AddressError as error:
        return Finding("port", False, f"listen: {error}", "change listen in node.toml")
    except OSError as error:
        return Finding("port", False, f"cannot listen at {listen}: {_why(error)}", _port_mend(error))
    if all(is_loopback(str(address[0])) for *_, address in found):
        remedy = f'to accept connections from other machines, set listen = ":{port}" and open the port in the firewall'
        used = "is used by this node, and " if running else "is "
        return Finding("port", None, f"{listen} {used}reachable from this machine only{other}", remedy)
    return Finding("port", True, f"{listen} {'is used by this node' if running else 'is free'}{other}")


def _why(error: OSError) -> str:
    """Return the system's error text, without the address that socket.create_server adds."""
    number = error.errno or 0
    return os.strerror(number) if number in errno.errorcode else reason(error)  # other numbers come from getaddrinfo


def _port_mend(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program uses the port: stop it (ss -ltnp shows it), or change listen in node.toml"
    if error.errno == errno.EACCES:
        return "choose a port of 1024 or above"
    return "no interface has this address: use one that `ip addr` shows, or none to listen at all of them"


def check_multicast(addresses: Sequence[str] | None = None) -> Finding:
    """Check whether multicast DNS can find nodes on the local network; nothing leaves this machine.

    Args:
        addresses: IPv4 addresses of the interfaces to try; all by default.
    """
    problems = {address: _multicast_problem(address) for address in (own_addresses() if addresses is None else addresses)}
    works = [address for address, problem in problems.items() if not problem]
    failed = [f"{address}: {problem}" for address, problem in problems.items() if problem]
    remedy = "enable multicast for the interface and open UDP port 5353, or set [addresses] in node.toml"
    if not works:
        return Finding("multicast", False, f"does not work ({'; '.join(failed) or 'no interface has an address'})", remedy)
    if all(is_loopback(address) for address in works):
        result = "works on loopback only" + (f" ({'; '.join(failed)})" if failed else "")
        return Finding("multicast", None, f"{result}: only nodes of this machine find each other", remedy)
    if failed:
        return Finding("multicast", None, f"works at {', '.join(works)}, but not at {'; '.join(failed)}", remedy)
    return Finding("multicast", True, f"works at {', '.join(works)}")


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this machine's interfaces."""
    import ifaddr

    return [ip.ip for adapter in ifaddr.get_adapters() for ip in adapter.ips if isinstance(ip.ip, str)]


def _multicast_problem(address: str) -> str:
    """Send a datagram to the group at an interface; return why it did not come back, or ""."""
    interface, text = socket.inet_aton(address), os.urandom(16)
    try:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind(("", 0))
            receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + interface)
            receiver.settimeout(1.0)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            sender.sendto(text, (GROUP, receiver.getsockname()[1]))
            with suppress(TimeoutError):
                while receiver.recv(64) != text:
                    pass
                return ""
            return "no message returned"
    except OSError as error:
        return reason(error)


def check_broker(url: str, topic: str = "", password: str | None = None, seconds: float = 5.0) -> Finding:
    """Check that a broker answers, accepts this node's credentials, and delivers packets of the sizes that nodes use.

    Args:
        url: see p2pfl.protocols.addresses; a password in it is never shown.
        topic: a topic that this node may publish to and subscribe to; by default a generated one.
        password: by default the one in the environment variable P2PFL_MQTT_PASSWORD, or in the URL.
        seconds: time to wait for the connection, and for the first message.
    """
    form = "set broker in node.toml to mqtt://host:1883 or mqtts://user@host:8883"
    try:
        address = BrokerAddress.parse(url)
    except AddressError:
        return Finding("broker", False, "its address is not a valid URL", form)
    where = address.name
    try:
        socket.create_connection((address.host, address.port), timeout=seconds).close()
    except OSError as error:
        return Finding("broker", False, f"{where} does not answer: {reason(error)}", NO_ANSWER)
    try:
        import aiomqtt  # noqa: F401

        from p2pfl.protocols.mqtt.broker_client import AiomqttBus
    except ImportError:
        return Finding(
            "broker",
            None,
            f"{where} answers; access was not checked, because aiomqtt is missing",
            "pip install 'p2pfl-node[mqtt]'",
        )
    bus = AiomqttBus(url, environment=os.environ if password is None else os.environ | {PASSWORD: password})
    try:
        problem = asyncio.run(try_broker(bus, topic or f"p2pfl/doctor/{os.urandom(16).hex()}", seconds, ALL_SIZES))
    except TimeoutError:
        result = f"{where} delivers small messages; large ones have not come back within {ALL_SIZES:g} s"
        return Finding("broker", None, result, "expect long transfers, or use a faster network")
    return broker_problem(problem) if problem else Finding("broker", True, f"{where} delivers messages")


def broker_problem(problem: str) -> Finding:
    """Return the finding for a problem of the broker, which is one sentence, with the remedy after "; " if one is known."""
    result, _, remedy = problem.removeprefix("the broker at ").partition("; ")
    return Finding("broker", False, result, remedy or NO_ANSWER)


def is_running(state: Mapping[str, Any]) -> bool:
    """Return whether a status is that of a running process."""
    return state.get("state") in RUNNING


def check_node(state: Mapping[str, Any]) -> Finding:
    """Check whether the node runs.

    Args:
        state: status of the node; empty if it never ran.
    """
    if not state:
        return Finding("node", None, "it has never run")
    if is_running(state) and state["state"] != "starting" and state.get("age", 0.0) > STALE:
        result = f"it runs, but has not answered or written its status for {duration(state['age'])}"
        return Finding("node", False, result, "free some space on the disk, or stop it and run it again")
    if is_running(state):
        return Finding("node", True, headline(state))
    ago = f", {duration(state['age'])} ago" if "age" in state else ""
    if state["state"] in ("failed", "gone"):
        reason = state.get("reason") or "it has ended unexpectedly"
        return Finding("node", False, f"{headline(state)}{ago}: {reason}", "correct this, and run it again")
    return Finding("node", None, f"it does not run ({headline(state)}{ago})")


def check_peers(state: Mapping[str, Any]) -> list[Finding]:
    """Return how each neighbour is reached: directly, through the broker, or not at all and why.

    Args:
        state: status of a running node.
    """
    broker, rounds = state.get("broker", ""), state.get("rounds", 0)
    found = [_check_peer(peer, broker, rounds) for peer in state.get("peers", [])]
    if more := describe_omitted(state):
        found.append(Finding("peers", None, more))
    return found


def _check_peer(peer: Mapping[str, Any], broker: str, rounds: int) -> Finding:
    check, link, reason = f"peer {peer['name']}", peer["link"], peer["reason"]
    if link == "broker" and "packets of" in broker:
        return Finding(check, None, "connected through the broker, but large messages do not arrive", BROKER_FIRST)
    if link == "broker" and broker:
        return Finding(check, None, "was connected through the broker, which does not work now")
    if link:
        way = "through the broker" if link == "broker" else f"directly, at {peer['remote']}"
        problems = {"behind": f", but it is {reason}", "suspected": f", but it is suspected ({reason})"}
        problem = problems.get(peer["state"], "")
        return Finding(check, None if problem else True, f"connected {way}{problem}")
    lost = is_of_broker(reason) or bool(broker and "messages do not arrive" in reason)
    if peer["state"] == "done" and not lost:
        if peer.get("round", rounds) < rounds:  # it stopped early, or does not know of an extension
            result = f"not connected, because it has finished and left, in round {peer['round']} of {rounds}"
            return Finding(check, None, result, "if the federation was extended, run the peer: it then continues")
        return Finding(check, True, "not connected, because it has finished its rounds and left")
    reason = reason.partition("; ")[0] if lost else reason or "no address known yet"
    result = f"not connected ({reason}){_addresses(peer['addresses'])}"
    if lost:
        return Finding(check, None, result, BROKER_FIRST)
    remedy = next((remedy for part, remedy in REMEDIES.items() if part in reason.lower()), OTHERWISE)
    return Finding(check, False if any(part in reason for part in FATAL) else None, result, remedy)


def _addresses(addresses: Mapping[str, str]) -> str:
    """Return the known direct addresses of a peer with their sources."""
    known = {address.removeprefix("tcp://"): source for address, source in addresses.items() if address != "mqtt:"}
    listed = ", ".join(f"{address} from {source}" for address, source in known.items())
    return f", known addresses: {listed}" if listed else ""


async def try_broker(bus: Bus, topic: str, first: float, all_sizes: float) -> str:
    """Return what is wrong with a broker: one sentence, with the remedy after "; " if one is known; "" if it works.

    Args:
        topic: a topic that the client may publish to and subscribe to.
        first: seconds to wait for the first message.
        all_sizes: seconds to wait for the end of the trial.

    Raises:
        TimeoutError: the broker delivers messages, but large ones have not arrived in time.
    """
    trial = _Trial(bus, topic, first)
    try:
        async with asyncio.timeout(all_sizes):
            await trial.over.wait()
    finally:
        await trial.close()
    return trial.problem.text or await bus.explain()


class _Trial:
    """Sends the packets of a node through one broker, and notes what arrives.

    Attributes:
        over: set when a problem is known, or when the broker works.
    """

    def __init__(self, bus: Bus, topic: str, first: float) -> None:
        self.over = asyncio.Event()
        self.problem = ProblemReport(lambda text: self.over.set())
        self._topic = topic
        self._delivery = DeliveryMonitor(bus, topic, self.problem, first)
        # Nodes ignore an empty message: the last will of this client must not tell them that a node is gone.
        self._connection = BrokerConnection(bus, Message(topic, b""), [topic], self.problem, random.uniform)
        self._connection.start(self, self._delivery.stop, _once)

    async def close(self) -> None:
        self._delivery.stop()
        await self._connection.close()

    def connected(self) -> None:
        self._connection.opened()
        self._delivery.start(lambda: None)

    def came(self, topic: str, content: bytes) -> None:
        if content[:1] == bytes([ECHO_PACKET]) and self._delivery.echo_came(content[1:]):
            self.problem.set(self._delivery.complaint)
            if self._delivery.sizes.complete:
                self.over.set()

    def writable(self) -> None: ...


async def _once(work: Callable[[], Awaitable[None]]) -> None:
    await work()
