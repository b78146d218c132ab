"""One participant: learning and messages put together, on asyncio. The same `Node` runs on machines and in the simulator.

node.py        the life of a node: prepare, rounds, early stopping, end
peers.py       what its policy may do to the outside, within the budget
exchange.py    how models are had of peers; messaging.py does it with signed messages over any transport
coding.py      how models are put into bytes: codecs, and differences from what a peer has
checkpoint.py  what survives a crash
"""
