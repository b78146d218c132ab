"""Execution of scenarios: runs over seeds and workers, resumption, forecasts of time and memory.

An interrupted command continues with `--resume`.
"""
