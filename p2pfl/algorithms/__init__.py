"""Algorithms on parameters, without input and output: sampling, similarity, clustering, GGC, aggregation.

Policies are composed of them. Each function names the paper and the equation that it implements.
"""
