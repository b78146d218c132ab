"""Transports: TLS 1.3 over TCP, in-process queues for simulations and tests, and several transports as one.

The interface is `p2pfl.protocols.transport`.
"""
