"""Training with PyTorch: tasks, models, optimisers, and learners for one node or for many nodes at once.

A learner answers the queries of `p2pfl.queries`. Only this package and those above it import torch.
"""
