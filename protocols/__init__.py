"""Communication between nodes: identity, messages, signatures, transports, discovery, membership, election.

A transport yields a complete frame. Only `wire.envelope.FrameVerifier.open` turns a frame into a message, or raises.
This package does not depend on torch, policies or nodes.
"""
