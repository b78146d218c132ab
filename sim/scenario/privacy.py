"""Privacy budgets of the nodes of a run; the key `privacy` of a scenario. p2pfl.privacy defines what they promise.

privacy = { epsilon = 8, delta = 1e-5, clip = 1.0 }                   # all nodes
privacy = { epsilon = 8, by_group = { "1" = { epsilon = 2 } } }       # another budget for a group of nodes
privacy = { by_node = { "0" = { epsilon = 4 } } }                     # node 0 only
privacy = { epsilon = 8, correlated = true, colluding = 1 }           # all nodes, with noise of neighbours that cancels
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from p2pfl._util.binding import bind
from p2pfl.errors import ConfigurationError
from p2pfl.privacy import Privacy

ONLY = ("by_group", "by_node")


class Privacies(Privacy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Privacy budgets: that of all nodes, with other values for some.

    Attributes:
        by_group: changes by the group that a node's task assigns.
        by_node: changes by the number of the node, over those of its group.
    """

    by_group: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    by_node: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)

    @property
    def wanted(self) -> bool:
        """Whether a node may have a privacy budget."""
        return bool(self.epsilon or self.by_group or self.by_node)

    def check_all(self, nodes: int) -> None:
        """Raise ConfigurationError for an invalid value."""
        self.check()
        for kind in ONLY:
            for name, changes in getattr(self, kind).items():
                self._changed([(f"privacy.{kind}.{name}", changes)])
        for name in self.by_node:
            if not (name.isdecimal() and int(name) < nodes and str(int(name)) == name):
                raise ConfigurationError(
                    f"privacy.by_node names the node {name!r}; the nodes are 0 to {nodes - 1}", "privacy.by_node", "nodes"
                )

    def of(self, node: int, group: Any) -> Privacy | None:
        """Return the budget of a node; None if it has none."""
        keys = (("by_group", str(group)), ("by_node", str(node)))
        changes = [
            (f"privacy.{kind}.{name}", getattr(self, kind)[name]) for kind, name in keys if name in getattr(self, kind)
        ]
        found = self._changed(changes)
        return found if found.epsilon else None

    def check_groups(self, groups: Sequence[Any]) -> None:
        """Raise ConfigurationError if a group has no node."""
        known = {str(group) for group in groups if group is not None}
        for group in self.by_group:
            if group not in known:
                raise ConfigurationError(
                    f"privacy.by_group: unknown group {group!r}; the groups are: {', '.join(sorted(known)) or 'none'}",
                    "privacy.by_group",
                )

    def _changed(self, changes: Sequence[tuple[str, Mapping[str, Any]]]) -> Privacy:
        table = {key: getattr(self, key) for key in Privacy.__struct_fields__}
        key = "privacy"
        for key, each in changes:
            try:
                table |= msgspec.to_builtins(bind(table | dict(each), Privacy))
            except ConfigurationError as error:
                raise ConfigurationError(f"{key}: {error}", key) from error
        found = bind(table, Privacy)
        found.check(key)
        return found
