"""Training with PyTorch: tasks, models, optimizers, and learners for one node or for many nodes at once.

A learner answers the queries of `p2pfl.task`; torch is imported here and below only.
"""
