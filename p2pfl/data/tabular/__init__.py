"""Tables with sensitive attributes: schemas, the data sets of fairness research, synthetic rows.

A schema in TOML describes the columns of a published file.
"""
