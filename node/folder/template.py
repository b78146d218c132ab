"""Text of a new node.toml: all keys with their defaults and a comment each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tomli_w

COMMENTS = 27  # column at which the comments begin
_HEADING = re.compile(r"\[(\w+)\].*")
_KEY = re.compile(r"(\w+) = .*? +(# .*)")


def render(values: Mapping[str, Any]) -> str:
    """Return the text of a node.toml with these values; keys that are not given keep their defaults.

    Args:
        values: keys and tables of node.toml. Keys of a table that the template lacks, such as options of a task, are
            added at the end of the table.
    """
    lines, table, left = [], "", dict(values)
    for line in TEMPLATE.splitlines():
        if found := _HEADING.fullmatch(line):
            table, left = found[1], dict(values.get(found[1], {}))
        elif not line and table:
            lines += _options(table, left)
            left = {}
        if (found := _KEY.fullmatch(line)) and found[1] in left:
            text = tomli_w.dumps({found[1]: left.pop(found[1])}).strip()
            line = f"{text.ljust(COMMENTS - 1)} {found[2]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _options(table: str, options: Mapping[str, Any]) -> list[str]:
    """Return the lines of further keys of a table that has begun."""
    return tomli_w.dumps({table: options}).removeprefix(f"[{table}]\n").splitlines() if options else []


TEMPLATE = """\
# Configuration of a p2pfl node.

name = ""                  # name of this node in the federation
listen = ":4100"           # host:port to listen on; without a host, at all addresses of this machine
advertise = []             # addresses at which others reach this node, if they differ from those of this machine
part = "0/1"               # part of a built-in data set for this node
data = ""                  # own data: .npz or .csv for "classification", a .toml schema for "fairness" or "praffl"
root = ""                  # folder with the published data sets; by default the environment variable P2PFL_DATA
initial = ""               # safetensors file to start from, for tasks that take one; the same content at all nodes
preference = []            # weights of the task's objectives, if it has several; they stay on this node
passphrase_file = ""       # file with the passphrase of the admission key, if that is here and encrypted
device = "cpu"             # cpu, cuda, mps, or auto
mdns = true                # find members on the local network, and announce this node there
direct = true              # listen, and connect to members without the broker where possible
broker = ""                # MQTT broker for members that cannot connect to each other, such as mqtt://host:1883
status_port = -1           # port of the status page and of Prometheus metrics, such as 4180; 0: a free port, -1: none
status_host = "127.0.0.1"  # address of the status page; other machines can read the page if this is not loopback
distrust = 0               # score from which a peer is left out, from 1 to 100; 0: none is (see p2pfl-node status)
evaluate_every = 1         # rounds between evaluations, besides that of the last round; 0: evaluate the last model only
best_by = "loss"           # the model that counts has the lowest validation "loss", or the best validation "metric"

# All members share the settings from here to the codec. `federation create` reads them from this file. For a node that has
# joined, those of the federation replace them. The names of task and policy must be the same here.

rounds = 10                # number of rounds
seed = 0                   # seed of all random draws
members = 1                # members, this node included, that must be present before the first round
mode = "synchronous"       # "synchronous": wait for models of the same round; "asynchronous": use the newest models
deadline = 30.0            # seconds to wait for a peer before continuing without it
adaptive = true            # wait only a few times as long as a peer usually takes
max_staleness = inf        # maximum age in seconds of the models that an asynchronous node uses
robust = "clip-loss"       # protection against malicious members: clip and weigh their models, or "cs+", ...; or "none"
patience = 0               # rounds without a better model on validation before learning stops; 0: never

[task]
name = "digits"            # digits, images, ... (see p2pfl-node init --help), or your own "package.module:factory"

[policy]
name = "dac"               # dac, dpfl, fedpref, ... (see p2pfl-node init --help), or your own "package.module:factory"

[codec]                    # format of the models on the network
name = "float32"           # float32, float16, bfloat16, int8, top-k, or sparse

# The rest is not shared.

[budget]                   # limits of what this node receives; 0: no limit
models = 0                 # models in a round
held = 0                   # received models in memory at once
bytes = 0                  # bytes of models in a round

[track]                    # trackers that receive the figures of each round
tools = []                 # "tensorboard", "mlflow", "wandb", "trackio"
project = "p2pfl"          # project of the tracker in which the node appears
folder = ""                # folder for their files; by default `track` in this folder

[addresses]                # known addresses of members
# bob = "192.168.1.6:4100"
"""
