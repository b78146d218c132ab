"""Robust aggregation: rules that protect a node's merge against lying members.

A rule comes after the weights of any policy, in the simulator and on live nodes alike. p2pfl.robust.registry lists the
rules by name. A new rule is one frozen dataclass that implements `Reweighting` or `OwnMerge` of
p2pfl.robust.candidates, and one line in the registry.
"""
