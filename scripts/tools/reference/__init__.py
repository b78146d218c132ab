"""Reference pages: tables and texts in docs/reference that are made from the code.

`python -m scripts.tools.reference` writes them, `--check` compares them with the code.
"""
