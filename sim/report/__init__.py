"""Report of finished runs: one self-contained HTML file, for screen and paper.

`folder` reads the files of a run, and `series` gives the runs of all folders unique names. The sections
(`node_results`, `sweep`, `comparison`, `objectives`, `attacks`, `collaboration`, `coordination`) turn runs into the data of
figures, with `figures` for those that several draw. `findings` states in sentences what the runs answer. `write` collects
all of it, and `page` puts it into the file.
"""
