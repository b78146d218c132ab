"""Report of finished runs: one self-contained HTML file, for screen and paper.

`folder` and `summary` read the files of runs, `sections` turn them into figures and tables, and `page` and `write` make
the report.
"""
