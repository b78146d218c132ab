"""Links with peers: dialling, introduction, routing of frames, and gossip of the membership log.

`p2pfl.node.peering.peer_manager` connects these parts.
"""
