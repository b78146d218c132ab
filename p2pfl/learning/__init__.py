"""Training: tasks, models, optimisers, and learners for one node or for many nodes at once.

A learner answers the queries of `p2pfl.queries`. `dense` trains with NumPy alone; the others use PyTorch, which only this
package and those above it import.
"""
