"""Formats of graphs that are recognised and refused, each with the command that converts it.

Files come under any name: a graph of DIMACS, METIS or DOT in a file `.txt` would otherwise be taken for a list of edges.
"""

from __future__ import annotations

import re

BY_SUFFIX = {  # the name of the format, and the function of networkx that reads it; "" if none does
    ".gexf": ("GEXF", "nx.read_gexf({file!r})"),
    ".net": ("Pajek", "nx.Graph(nx.read_pajek({file!r}))"),
    ".paj": ("Pajek", "nx.Graph(nx.read_pajek({file!r}))"),
    ".g6": ("graph6", "nx.read_graph6({file!r})"),
    ".graph6": ("graph6", "nx.read_graph6({file!r})"),
    ".s6": ("sparse6", "nx.read_sparse6({file!r})"),
    ".sparse6": ("sparse6", "nx.read_sparse6({file!r})"),
    ".lgr": ("LEDA", "nx.read_leda({file!r})"),
    ".leda": ("LEDA", "nx.read_leda({file!r})"),
    ".gw": ("LEDA", "nx.read_leda({file!r})"),
    ".mtx": ("Matrix Market", "nx.from_scipy_sparse_array(scipy.io.mmread({file!r}))"),
    ".npy": ("an array of NumPy", "nx.from_numpy_array(numpy.load({file!r}))"),
    ".npz": ("an archive of NumPy or SciPy", "nx.from_scipy_sparse_array(scipy.sparse.load_npz({file!r}))"),
    ".dot": ("DOT", "nx.Graph(nx.nx_pydot.read_dot({file!r}))"),
    ".gv": ("DOT", "nx.Graph(nx.nx_pydot.read_dot({file!r}))"),
    ".graph": ("METIS", ""),
    ".metis": ("METIS", ""),
    ".col": ("DIMACS", ""),
    ".clq": ("DIMACS", ""),
    ".dimacs": ("DIMACS", ""),
    ".gr": ("DIMACS", ""),
    ".tgf": ("Trivial Graph Format", ""),
    ".lgl": ("LGL", ""),
    ".dl": ("UCINET DL", ""),
    ".pickle": ("a pickle", ""),
    ".pkl": ("a pickle", ""),
    ".gpickle": ("a pickle", ""),
    ".parquet": ("Parquet", "nx.from_pandas_edgelist(pandas.read_parquet({file!r}))"),
    ".xlsx": ("a spreadsheet", "nx.from_pandas_edgelist(pandas.read_excel({file!r}))"),
}

# First characters of a text after empty lines; `%` and `#` lines that are only comments do not count.
SIGNATURES = (
    (re.compile(r"%%MatrixMarket", re.I), ".mtx"),
    (re.compile(r"\*(vertices|network|arcs|edges|matrix)\b", re.I), ".net"),
    (re.compile(r"LEDA\.GRAPH"), ".lgr"),
    (re.compile(r">>graph6<<"), ".g6"),
    (re.compile(r">>sparse6<<"), ".s6"),
    (re.compile(r"(strict\s+)?(di)?graph\b[^\n\[,;]*\{", re.I), ".dot"),
    (re.compile(r"dl\s+(n|nr|nm)\s*=", re.I), ".dl"),
    (re.compile(r"(c(\s[^\n]*)?\n\s*)*p\s+(edge|col|sp|max|min|cut|td|tw)\s+\d+\s+\d+"), ".dimacs"),
)
OTHER_SUFFIX = (
    (re.compile(r"<\?xml|<graphml|<gexf|<!DOCTYPE", re.I), "XML", ".graphml"),
    (re.compile(r"(Creator\s[^\n]*\n\s*)?(Version\s[^\n]*\n\s*)?graph\s*\[", re.I), "GML", ".gml"),
    (re.compile(r"[\[{]\s*([\"{\[]|\]|\})"), "JSON", ".json"),
)
BEGINNING = 4_000  # characters of a text that are compared with the signatures


def refuse_suffix(suffix: str, file: str) -> None:
    """Raise ValueError if the format of a suffix is known and not read."""
    if suffix in BY_SUFFIX:
        raise ValueError(describe(suffix, file))


def refuse_text(text: str, file: str) -> None:
    """Raise ValueError if a text begins like another format than a list of edges or a table."""
    beginning = text[:BEGINNING].lstrip()
    for pattern, suffix in SIGNATURES:
        if pattern.match(beginning):
            raise ValueError(f"line 1: {describe(suffix, file)}")
    beginning = re.sub(r"^(?:[#%][^\n]*\n\s*)+", "", beginning)
    for pattern, suffix in SIGNATURES:
        if pattern.match(beginning):
            raise ValueError(describe(suffix, file))
    for pattern, name, suffix in OTHER_SUFFIX:
        if pattern.match(beginning):
            raise ValueError(f"the file begins like {name}; give it a name that ends in {suffix}")


def describe(suffix: str, file: str) -> str:
    """Return the line that refuses a format, with the remedy."""
    name, reader = BY_SUFFIX[suffix]
    if not reader:
        return f"{name} is not read; convert the file to GraphML, or to a list with a line 'source target' for each edge"
    target = file.partition(".")[0] + ".graphml"
    libraries = [library for library in ("numpy", "pandas", "scipy") if f"{library}." in reader]
    imports = ", ".join(["networkx as nx", *({"scipy": "scipy.io, scipy.sparse"}.get(each, each) for each in libraries)])
    command = f"import {imports}; nx.write_graphml({reader.format(file=file)}, {target!r})"
    return f'{name} is not read; convert the file to GraphML: python -c "{command}"'
