"""Communication between nodes: identity, messages, signatures, transports, discovery, membership, election.

A transport yields a complete frame; `wire.envelope.FrameVerifier.open` turns it into a message or raises, and nothing else
does. This package knows no torch, no policy and no node.
"""
