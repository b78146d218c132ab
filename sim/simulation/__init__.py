"""One run: nodes on a virtual clock, a modelled network, batched training, and records of what happened.

The nodes are those of `p2pfl.node`; only the exchange differs.
"""
