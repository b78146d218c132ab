"""Time in which many node processes connect, and the cost of members that are away.

    benchmarks/founding.py 100              # all start at the same time, directly on loopback
    benchmarks/founding.py 100 --broker     # only through a Mosquitto, which must be installed
    benchmarks/founding.py 1 --absent 800   # one process whose other members are off: its cost while it waits for them
    benchmarks/founding.py 200 --degree 8 --churn 0.2 --rounds 10   # learn while a fifth is killed and returns

The graph is complete, or random with a degree. The program prints when all processes listen, when all are connected, the
processor time until then, the connections that were refused by cause, and the errors that the nodes have survived. It exits
with 1 if not all are connected within 60 s after all listen, or if 100 connections or more were refused. PyTorch is hidden
from the nodes.

With `--churn` it then kills a share of the nodes one after the other while they learn, starts each again after some seconds,
waits until all nodes have done their rounds, and ends them as their owners do. It prints the time until then and the exit
codes, and exits with 1 if a node has not done all rounds, or has ended with another code than 0.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import networkx as nx
import psutil

from benchmarks import processes
from p2pfl.node.federation.membership_file import MembershipFile, member_of
from p2pfl.node.folder import config
from p2pfl.node.status import reader
from p2pfl.protocols.identity import Identity
from p2pfl.random_streams import RandomStreams
from tests.support import brokers

TOML = """
rounds = {rounds}
members = {members}
deadline = 60.0
{more}

[task]
name = "concept-shift"

[policy]
name = "random"
neighbours = 3
"""
LONGEST = 60.0  # seconds to connect, once all listen
REFUSED = 100  # permitted refused connections
AWAY = 5.0  # seconds between a kill and the next start
WAITING, MEASURED = 60.0, 30.0  # seconds before and during the measurement of a node without its members


class Federation(processes.Federation):
    def states(self) -> list[dict[str, Any]]:
        return [self.state(name) for name in self.names]

    def cpu(self) -> float:
        """Return the seconds of processor time of all processes."""
        times = [psutil.Process(process.pid).cpu_times() for process in self.processes.values()]
        return float(sum(each.user + each.system for each in times))


def connect(federation: Federation, limit: float, degree: int | None) -> dict[str, Any]:
    """Start all processes; return the figures of their founding."""
    begun, count = time.monotonic(), len(federation.names)
    ends, listening = count * (count - 1 if degree is None else degree), 0.0
    federation.start()
    while True:
        states, now = federation.states(), time.monotonic() - begun
        if not listening and all(state["state"] != "starting" for state in states):
            listening = now
        links = sum(state.get("peer_counts", {}).get("linked", 0) for state in states)
        if links == ends or now > limit:
            break
        time.sleep(1.0)
    refused: Counter[str] = Counter()
    for state in federation.states():
        refused.update(state.get("rejected", {}))
    return {
        "members": count,
        "links": links,
        "listening_s": round(listening, 1),
        "connected_s": round(now, 1) if links == ends else None,
        "cpu_s": round(federation.cpu(), 1),
        "refused": dict(refused),
        "faults": sum(sum(state.get("faults", {}).values()) for state in states),
    }


def learn(federation: Federation, share: float, rounds: int, limit: float, seed: int) -> dict[str, Any]:
    """Kill a share of the nodes while they learn, start them again, and wait until all have done their rounds."""
    begun, names = time.monotonic(), federation.names
    drawn = RandomStreams(seed, "founding").generator(0, "churn").permutation(len(names))[: int(share * len(names))]
    away: dict[str, float] = {}
    killed = 0
    while True:
        now = time.monotonic() - begun
        done = [_round(federation, name) for name in names if name not in away]
        furthest = max(done, default=0)
        if killed < len(drawn) and furthest >= rounds * killed / len(drawn):  # spread over the rounds
            name = names[drawn[killed]]
            federation.kill(name)
            away[name], killed = now, killed + 1
        for name in [name for name, since in away.items() if now - since > AWAY]:
            del away[name]
            federation.start(name)
        whole = not away and killed == len(drawn) and min(done) >= rounds
        if whole or now > limit:
            break
        time.sleep(0.2)
    finished = sum(_round(federation, name) >= rounds for name in names)
    codes: Counter[int] = Counter()
    for name in names:
        process = federation.processes[name]
        federation.send(name, signal.SIGTERM)
        codes[process.wait(LONGEST)] += 1
    return {"killed": killed, "finished": finished, "rounds_s": round(now, 1), "exit_codes": dict(codes)}


def _round(federation: Federation, name: str) -> int:
    """Return the round of a node, also of one that has just started again, whose status is that of the killed process."""
    state = reader.read(federation.folders[name] / config.STATUS)
    return int(state["round"]) if state else 0


def wait_alone(federation: Federation, absent: int) -> dict[str, Any]:
    """Run one process whose other members are off; return its cost after a while."""
    (name,) = federation.names
    folder = federation.folders[name]
    log, admission = member_of(folder), Identity.load(folder / "admission.pem")
    for k in range(absent):
        log.append(admission, "add", f"absent-{k}", Identity.from_seed((k + 1).to_bytes(32, "big")).public)
    MembershipFile(folder).save(log)
    port = federation.port()  # of nobody: connections are refused at once
    config = folder / "node.toml"
    config.write_text(config.read_text() + "".join(f'absent-{k} = "127.0.0.1:{port}"\n' for k in range(absent)))
    federation.start()
    federation.wait(lambda: federation.state(name)["state"] == "serving", "it has done its rounds")
    time.sleep(WAITING)
    cpu, begun = federation.cpu(), time.monotonic()
    time.sleep(MEASURED)
    share = (federation.cpu() - cpu) / (time.monotonic() - begun)
    return {"absent": absent, "core": round(share, 4), "status_bytes": (folder / "status.json").stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("members", type=int)
    parser.add_argument("--broker", action="store_true", help="connect through a broker only")
    parser.add_argument("--absent", type=int, default=0, help="further members that are off")
    parser.add_argument("--degree", type=int, help="neighbours of each node; all by default")
    parser.add_argument("--churn", type=float, default=0.0, metavar="SHARE", help="nodes to kill and start again")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of learning (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which to give up")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    with ExitStack() as close:
        root = Path(close.enter_context(tempfile.TemporaryDirectory()))
        more = ""
        if given.broker:
            broker = close.enter_context(brokers.mosquitto(["allow_anonymous true", "max_queued_messages 0"]))
            more = f'direct = false\nbroker = "mqtt://127.0.0.1:{broker.port}"'
        names = [f"node-{k:03}" for k in range(given.members)]
        toml = TOML.format(members=given.members, rounds=given.rounds, more=more)
        edges: Any = "all"
        if given.degree is not None:
            graph = nx.random_regular_graph(given.degree, given.members, seed=given.seed)
            edges = [(names[a], names[b]) for a, b in graph.edges]
        federation = Federation(root, names, toml, edges=edges, torch=False)
        with federation.running(start=False):
            if given.absent:
                figures = wait_alone(federation, given.absent)
            else:
                figures = connect(federation, given.limit, given.degree)
            if given.churn:
                figures |= learn(federation, given.churn, given.rounds, given.limit, given.seed)
    print(json.dumps(figures))
    if given.json:
        given.json.write_text(json.dumps(figures) + "\n")
    if not given.absent:
        late = figures["connected_s"] is None or figures["connected_s"] - figures["listening_s"] > LONGEST
        bad = given.churn and (figures["finished"] < given.members or [*figures["exit_codes"]] != [0])
        sys.exit(bool(late or bad or sum(figures["refused"].values()) >= REFUSED))


if __name__ == "__main__":
    main()
