"""Algorithms on parameters, free of input and output: sampling, similarity, clustering, greedy graphs (GGC), aggregation.

Policies are made of these; each function names the paper and the equation that it implements.
"""
