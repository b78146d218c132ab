"""Trackers of experiments: TensorBoard, MLflow, Weights & Biases, Trackio, and your own.

A tracker receives the figures of runs. It never affects them: it runs in a thread of its own, and an error ends only it.
"""
