"""Checks of the project: programs that check its prose, its names and its architecture.

They read files and import no product code, so that they also run on a broken tree. `scripts/check` calls them.
"""
