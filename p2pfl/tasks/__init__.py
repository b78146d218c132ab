"""Built-in tasks: `concept-shift` (synthetic), `digits`, `images`, `fairness` (data sets), and others.

Each module contains one factory, which a configuration selects by name.
"""
