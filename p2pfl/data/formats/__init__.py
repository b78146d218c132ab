"""Readers of file formats: IDX, CIFAR, NPZ.

All limits are checked before memory is allocated.
"""
