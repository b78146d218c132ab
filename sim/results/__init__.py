"""Results of runs: files, summary metrics, learning curves, fronts.

docs/reports.md lists the files that a run leaves.
"""
