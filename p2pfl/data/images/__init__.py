"""Image data sets: a catalog of published sets, the user's own folders, and transforms.

`registry` maps the name in a configuration to samples and labels.
"""
