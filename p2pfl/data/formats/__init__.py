"""Readers of file formats: IDX, CIFAR, NPZ.

Every limit is checked before memory is taken.
"""
