"""What travels between nodes: identity, messages, signing, transports. Knows no torch, no policy, no node.

The path of a frame: a transport yields it whole; `Door.open` turns it into a message or raises; nothing else does.
"""
