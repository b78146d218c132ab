"""Status of a running node: observer, status file and socket, HTTP endpoints, Prometheus metrics, event log.

Observation never changes a result.
"""
