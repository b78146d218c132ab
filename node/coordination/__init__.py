"""Coordinated rounds: aggregation step of the elected coordinator, submissions of participants, timers of the election.

The election itself is `p2pfl.protocols.election`.
"""
