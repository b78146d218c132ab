"""Comparison of a federation's options with the configuration of a node that wants to join."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

from p2pfl.config.binding import split_name
from p2pfl.config.registry import resolve
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation.agreement import Agreement, apply_agreement
from p2pfl.node.federation.loading import LoadedNode, find_own_modules, task_of
from p2pfl.node.folder.config import NodeConfig
from p2pfl.policies import POLICIES
from p2pfl.system.printable import plural, printable
from p2pfl.task import DERIVED_OPTIONS, TASKS

NOTHING = "nothing"
_KINDS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "task": (TASKS, "p2pfl.tasks"),
    "policy": (POLICIES, "p2pfl.policies"),
}


class Difference(NamedTuple):
    """Option that differs between a federation and a node's configuration.

    Attributes:
        key: key of the option, such as "task.samples".
        theirs, ours: values as text; `NOTHING` if there is neither a value nor a default.
    """

    key: str
    theirs: str
    ours: str


def summary(agreement: Agreement) -> list[str]:
    """Return a federation's settings as lines for people."""
    lines = [f"settings of the federation {agreement.name}:"]
    for kind in _KINDS:
        name, options = split_name(kind, getattr(agreement, kind))
        words = ", ".join(f"{printable(key)} = {_format_value(value)}" for key, value in options.items())
        lines.append(f"  {kind} {printable(name)}{': ' + words if words else ''}")
    values = agreement.model.values
    return [*lines, f"  model of {values:,} values ({4 * values / 1e6:,.2f} MB), {plural(agreement.rounds, 'round')}"]


def differences(own: NodeConfig, agreement: Agreement, folder: Path) -> list[Difference]:
    """Return the options of task and policy that differ between a federation and a node's configuration.

    A missing option counts with the default of the task or policy, which is imported to find it. The node's owner has
    named it too (see p2pfl.node.federation.agreement.apply_agreement). An option that the task would take from the
    node's data (p2pfl.task.DERIVED_OPTIONS) differs only if the owner has set it.
    """
    found = []
    for kind in _KINDS:
        name, theirs = split_name(kind, getattr(agreement, kind))
        _, ours = split_name(kind, getattr(own, kind))
        if theirs == ours:
            continue
        find_own_modules(folder, own)
        default = _defaults(kind, name)
        unset = {*DERIVED_OPTIONS.get(name, ())} - {*ours} if kind == "task" else set()
        for key in sorted({*theirs, *ours} - unset):
            here, there = (options.get(key, default.get(key, Parameter.empty)) for options in (ours, theirs))
            if here != there:
                found.append(Difference(printable(f"{kind}.{key}"), _format_value(there), _format_value(here)))
    return found


def check_data(own: NodeConfig, agreement: Agreement, folder: Path) -> None:
    """Check that this node's data has the sizes and columns of the federation, if its task takes them from the data.

    Data that is not there yet is checked when the node runs.

    Raises:
        ConfigurationError: the data does not fit the federation.
    """
    if agreement.task["name"] in DERIVED_OPTIONS and Path(own.data).expanduser().is_file():
        task_of(LoadedNode(folder, apply_agreement(own, agreement), None, agreement))


def _defaults(kind: str, name: str) -> dict[str, Any]:
    """Return the options of a task or policy that have a default; none if it cannot be imported."""
    try:
        parameters = signature(resolve(kind, name, *_KINDS[kind])).parameters.values()
    except (ConfigurationError, ValueError):
        return {}
    return {each.name: each.default for each in parameters if each.default is not Parameter.empty}


def _format_value(value: Any) -> str:
    return NOTHING if value is Parameter.empty else "none" if value is None or value in ((), []) else repr(value)
