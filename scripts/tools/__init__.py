"""Gates of the project: programs that check its prose, its names and its architecture.

They read files and import no product code, so that they run on a tree that does not work yet. `scripts/check` calls them.
"""
