"""Tasks that come with p2pfl: `concept-shift` (synthetic), `digits`, `images`, `fairness` (data sets), and others.

Each module has one factory, which a configuration names.
"""
