"""Defaults of nodes and of scenarios: equal, except for the documented differences."""

import json
import re

import msgspec

from p2pfl.node.cli.main import parser
from p2pfl.node.folder.config import NodeConfig
from p2pfl.sim.scenario.scenario import resolve
from tests.support.pages import DOCS

OWN = {"name", "budget", "privacy"}  # the name has no default; budgets of scenarios have other types


def documented():
    """Return the documented differences: (node, scenario) by key."""
    text = (DOCS / "reference/configuration.md").read_text(encoding="utf-8")
    section = text.partition("## Differences from a scenario\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| `(.*?)` \| \S", section, re.M)
    return {key: (json.loads(node), json.loads(scenario)) for key, node, scenario in rows}


def test_nodes_and_scenarios_have_equal_defaults():
    node = msgspec.to_builtins(NodeConfig(name="alice", listen=":4100"))
    scenario = msgspec.to_builtins(resolve({}, [], "study", ".").runs[0])
    shared = (node.keys() & scenario.keys()) - OWN
    assert {"task", "policy", "rounds", "codec", "deadline"} <= shared
    assert {key: (node[key], scenario[key]) for key in shared if node[key] != scenario[key]} == documented()


def test_budgets_have_no_limit_by_default():
    budgets = NodeConfig(name="alice", listen=":4100").budget, resolve({}, [], "study", ".").runs[0].budget
    assert {(budget.models, budget.held, budget.bytes) for budget in budgets} == {(0, 0, 0)}


def test_privacy_budgets_have_equal_defaults():
    node, scenario = NodeConfig(name="alice", listen=":4100").privacy, resolve({}, [], "study", ".").runs[0].privacy
    assert {key: getattr(scenario, key) for key in node.__struct_fields__} == msgspec.to_builtins(node)


def test_demo_has_the_default_policy_of_nodes():
    assert parser().parse_args(["demo"]).policy == NodeConfig(name="alice", listen=":4100").policy["name"]
