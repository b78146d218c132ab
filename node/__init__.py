"""One participant of a federation, which combines learning and messages on asyncio.

`node.Node` is the life of a participant; the same class runs on machines and in the simulator. `policy_api` is
what its policy sees, `exchange` obtains peers' models, and `checkpoint` stores the state that survives a crash.
"""
