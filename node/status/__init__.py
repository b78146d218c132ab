"""Status of a running node: observer, status file and socket, HTTP endpoints, Prometheus metrics, changes among peers.

Observation never changes a result.
"""
