"""Samples of a node from the data that a user gives to a task: arrays, tensors and datasets.

Data are checked here, so that a mistake in them gives one line before the training begins.
"""
