"""One participant of a federation: learning and messages put together, on asyncio.

`node.Node` is the life of a participant; it is the same class on machines and in the simulator. `policy_api` is what its
policy may do, `exchange` obtains peers' models, `checkpoint` keeps what survives a crash.
"""
