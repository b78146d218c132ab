"""HTTP server and page assets, shared by a node's status page and the monitor of a simulation.

It needs the extra `status`. Pages load nothing from other hosts.
"""
