"""Coordinated rounds: the elected coordinator's step, participants that submit to it, and the election's timers.

The election itself is `p2pfl.protocols.election`.
"""
