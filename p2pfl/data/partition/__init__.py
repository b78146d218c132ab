"""Division of samples among nodes, and of a node's samples into train, validation and test.

Every draw comes from the seed of the federation.
"""
