"""Tables: `labelled` reads plain rows with a label, and `table` reads published files with sensitive attributes.

A schema in TOML describes the columns of a published file.
"""
