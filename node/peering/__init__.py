"""Peers of a node: links, introductions, failure detection, exclusion of offenders, and traffic counters.

This package sends and receives frames; the exchange decides on their content.
"""
