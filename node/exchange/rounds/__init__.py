"""Pace of rounds: when a node may begin the next one, and for which peers it waits.

The rules are shared with the simulator.
"""
