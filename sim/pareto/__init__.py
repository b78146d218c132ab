"""Search for Pareto fronts over preferences by simulated annealing.

Command: `p2pfl-sim pareto`.
"""
