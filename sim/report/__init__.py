"""Report of finished runs: one HTML file that needs nothing else, for screen and paper.

`folder` and `summary` read what runs have left, `sections` turn it into figures and tables, `page` and `write` make the
file.
"""
