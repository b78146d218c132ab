"""One simulated run: virtual clock, modelled network, batched training and recorder.

The nodes and their rounds are those of real machines: see `p2pfl.node.node`.
"""
