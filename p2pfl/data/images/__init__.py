"""Image data sets: the catalog of published ones, folders of a user's own, transforms.

`registry` maps the name in a configuration to samples and labels.
"""
