"""HTTP server and page assets that a node's status page and the monitor of a simulation share.

It needs the extra `status`; pages load nothing from other hosts.
"""
