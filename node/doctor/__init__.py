"""Checks of a node's folder, clock, data and network, for `p2pfl-node doctor`.

Each check returns a finding with a remedy; no check changes anything.
"""
