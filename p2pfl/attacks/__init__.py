"""Attacks of members that lie, for simulations of robust rules.

An attack changes what an attacker publishes; the rest of its node stays as it is. p2pfl.attacks.registry lists the
attacks by name. A new attack is one frozen dataclass that overrides a method of `Attack`, and one line in the registry.
"""
