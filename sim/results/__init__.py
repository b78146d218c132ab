"""Results of runs: files, summary metrics, learning curves, fronts.

docs/reference/files.md lists the files that a run leaves.
"""
