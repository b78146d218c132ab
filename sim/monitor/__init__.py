"""Monitor of runs in progress, on the terminal and on a local page.

Watching does not affect results.
"""
