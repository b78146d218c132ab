"""Reinforcement learning with several rewards: deep and tabular learners, and their evaluation.

Deep learners need the extra `morl`.
"""
