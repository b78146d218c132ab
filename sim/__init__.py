"""Simulation of many participants in one process: the same `Node`, on a virtual clock, over a modelled network.

`scenario` describes runs, `simulation` performs one, `execution` performs many, `results` and `report` show them.
"""
