"""Links with peers: dialling, introduction, routing of frames, gossip of the membership log.

`p2pfl.node.peering.peer_manager` puts them together.
"""
