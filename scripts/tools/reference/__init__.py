"""Reference pages: tables and texts in docs/reference that are generated from the code.

`python -m scripts.tools.reference` writes them, and `--check` compares them with the code.
"""
