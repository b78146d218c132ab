"""Simulation of many participants in one process.

It runs the same `Node` as real machines, on a virtual clock and over a modelled network. `scenario` describes runs,
`simulation` performs one run, `execution` performs many, and `results` and `report` show the results.
"""
