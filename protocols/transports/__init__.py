"""Transports: TLS 1.3 over TCP, and in-process queues for simulations and tests.

The interface is `p2pfl.protocols.transport`.
"""
