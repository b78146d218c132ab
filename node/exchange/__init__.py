"""Exchange of models with peers: the interface, and its implementation with messages.

The simulator implements the same interface without messages.
"""
