"""Peers of a node: links, introductions, failure detection, sanctions, traffic counters.

It sends and receives frames; the exchange decides what is in them.
"""
