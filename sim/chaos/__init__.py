"""Chaos: real nodes on virtual time under random faults, with invariants that are checked during the run.

`schedule` draws the faults from a seed, `chaos_run` runs them, and `shrinking` finds a short schedule for a violation.
"""
