"""Several objectives for one model: preferences, scalarisation, MGDA, simulated annealing.

Objectives are minimised; a preference is a point of the simplex.
"""
