"""Exchange of models with peers: the interface, and its implementation with signed messages.

The simulator implements the same interface without messages.
"""
