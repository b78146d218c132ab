"""Random graphs as files, as networkx, pandas, polars, NumPy and R write them, and faults of such files."""

import csv
import gzip
import io
import json
from contextlib import suppress
from importlib.util import find_spec

import networkx as nx
import numpy as np

from p2pfl.topologies import labels, read

CITIES = [
    "New York",
    "Rio, RJ",
    "Oslo",
    'The "Hub"',
    "Zürich",
    "Room #4",
    "C#",
    "O'Hara",
    "São Paulo",
    "a;b",
    "x/y",
    "Turin",
]
WORDS = ["anna", "bert", "carl", "dora", "emil", "fred", "gina", "hans", "ida", "jan", "kim", "leo"]


def random_graph(rng, nodes=None):
    """Return a graph with at least one edge, and names of one kind; some have weights or directions."""
    n = nodes or rng.randint(2, 10)
    kind = rng.choice(["numbers", "from one", "sparse numbers", "words", "cities", "codes"])
    names = {
        "numbers": list(range(n)),
        "from one": list(range(1, n + 1)),
        "sparse numbers": rng.sample(range(1000), n),
        "words": rng.sample(WORDS, n),
        "cities": rng.sample(CITIES, n),
        "codes": [f"n{k}" for k in range(n)],
    }[kind]
    graph = (nx.DiGraph if rng.random() < 0.2 else nx.Graph)()
    graph.add_nodes_from(names)
    pairs = [(a, b) for a in names for b in names if a != b and (graph.is_directed() or names.index(a) < names.index(b))]
    graph.add_edges_from(rng.sample(pairs, rng.randint(1, min(len(pairs), 2 * n))))
    if rng.random() < 0.5:
        for _, _, attributes in graph.edges(data=True):
            attributes["weight"] = rng.choice([1, 2, 5, 0.5, 1.25, 3.0])
    return graph


def _write(writer, *arguments, **options):
    stream = io.BytesIO()
    writer(*arguments[:1], stream, *arguments[1:], **options)
    return stream.getvalue()


def _frame(graph, names=("source", "target")):
    import pandas

    weighted = nx.is_weighted(graph)
    rows = [(a, b, *((w,) if weighted else ())) for a, b, w in graph.edges(data="weight")]
    return pandas.DataFrame(rows, columns=[*names, *(["weight"] if weighted else [])])


def _polars(graph, **options):
    import polars

    return (
        polars.from_dicts(_frame(graph).astype({"source": str, "target": str}).to_dict("records"))
        .write_csv(**options)
        .encode()
    )


def _with_two_attributes(graph):
    other = graph.copy()
    for k, (_, _, attributes) in enumerate(other.edges(data=True)):
        attributes |= {"cost": k, "road": "A, {1} #2"}
    return _write(nx.write_edgelist, other)


def _r(graph, weight=True):
    frame = _frame(graph, ("from", "to"))
    frame.index += 1
    frame.index = frame.index.astype(str)
    return frame.to_csv(quoting=csv.QUOTE_NONNUMERIC, index_label="").encode()


def _numpy(graph, **options):
    matrix = nx.to_numpy_array(graph)
    return _write(lambda matrix, stream: np.savetxt(stream, matrix, **options), matrix)


def _metis(graph):
    graph = nx.Graph(graph)
    number = {node: k for k, node in enumerate(graph, 1)}
    around = ["" + " ".join(str(number[other]) for other in graph[node]) for node in graph]
    return "\n".join([f"{len(graph)} {graph.number_of_edges()}", *around, ""]).encode()


def _pandas(graph, index=False, names=("source", "target"), **options):
    return _frame(graph, names).to_csv(index=index, **options).encode()


def _with_default_names(graph):
    frame = _frame(graph)
    return frame.set_axis(range(len(frame.columns)), axis=1).to_csv(index=False).encode()


def _multi_line(graph):
    return "\n".join(nx.generate_multiline_adjlist(graph)).encode()


def _snap(graph):
    head = ["# Undirected graph: g.txt", "# Nodes: 9 Edges: 9", "# FromNodeId\tToNodeId"]
    return _lines(head, graph, lambda a, b, w: f"{a}\t{b}")


def _konect(graph):
    return _lines(["% sym unweighted", "% 9 9 9"], graph, lambda a, b, w: f"{a} {b} {w} 1082008561")


def _dimacs(graph):
    return _lines([f"p edge {len(graph)} {graph.number_of_edges()}"], graph, lambda a, b, w: f"e {a} {b}")


def _counts_first(graph):
    return _lines([f"{len(graph)} {graph.number_of_edges()}"], graph, lambda a, b, w: f"{a} {b}")


def _lines(head, graph, row):
    return "\n".join([*head, *(row(a, b, w) for a, b, w in graph.edges(data="weight", default=1)), ""]).encode()


# By name: the name of the file, its content, and whether it has the nodes without edges.
FORMS = {
    "networkx edge list": ("g.edgelist", lambda g: _write(nx.write_edgelist, g), False),
    "networkx edge list, two attributes": ("g.edgelist", _with_two_attributes, False),
    "networkx edge list, no data": ("g.txt", lambda g: _write(nx.write_edgelist, g, data=False), False),
    "networkx edge list, commas": ("g.csv", lambda g: _write(nx.write_edgelist, g, delimiter=",", data=False), False),
    "networkx edge list, commas and dicts": ("g.csv", lambda g: _write(nx.write_edgelist, g, delimiter=","), False),
    "networkx edge list, tabs": ("g.tsv", lambda g: _write(nx.write_edgelist, g, delimiter="\t", data=False), False),
    "networkx edge list, weight": ("g.txt", lambda g: _write(nx.write_edgelist, g, data=["weight"]), False),
    "networkx weighted edge list": ("g.txt", lambda g: _write(nx.write_weighted_edgelist, g), False),
    "networkx weighted edge list, tabs": ("g.tsv", lambda g: _write(nx.write_weighted_edgelist, g, delimiter="\t"), False),
    "networkx adjacency list": ("g.adjlist", lambda g: _write(nx.write_adjlist, g), True),
    "networkx adjacency list, .txt": ("g.txt", lambda g: _write(nx.write_adjlist, g), True),
    "networkx adjacency list, no comments": ("g.txt", lambda g: "\n".join(nx.generate_adjlist(g)).encode(), True),
    "networkx multi-line adjacency list": ("g.adjlist", lambda g: _write(nx.write_multiline_adjlist, g), True),
    "networkx multi-line adjacency list, .txt": ("g.txt", _multi_line, True),
    "GraphML": ("g.graphml", lambda g: _write(nx.write_graphml, g), True),
    "GML": ("g.gml", lambda g: _write(nx.write_gml, g), True),
    "JSON": ("g.json", lambda g: json.dumps(nx.node_link_data(g, edges="edges")).encode(), True),
    "JSON with links": ("g.json", lambda g: json.dumps(nx.node_link_data(g, edges="links")).encode(), True),
    "JSON, adjacency": ("g.json", lambda g: json.dumps(nx.adjacency_data(g)).encode(), True),
    "JSON, Cytoscape": ("g.json", lambda g: json.dumps(nx.cytoscape_data(g)).encode(), True),
    "GEXF": ("g.gexf", lambda g: _write(nx.write_gexf, g), True),
    "GEXF, .xml": ("g.xml", lambda g: _write(nx.write_gexf, g), True),
    "Pajek, .txt": ("g.txt", lambda g: "\n".join(nx.generate_pajek(g)).encode(), True),
    "graph6, .txt": ("g.txt", lambda g: nx.to_graph6_bytes(nx.Graph(g)), True),
    "pandas": ("g.csv", _pandas, False),
    "pandas with index": ("g.csv", lambda g: _pandas(g, index=True), False),
    "pandas, semicolons": ("g.csv", lambda g: _pandas(g, sep=";"), False),
    "pandas, semicolons and decimal commas": ("g.csv", lambda g: _pandas(g, sep=";", decimal=","), False),
    "pandas, tabs": ("g.tsv", lambda g: _pandas(g, names=("id_1", "id_2"), sep="\t"), False),
    "pandas, blanks": ("g.txt", lambda g: _pandas(g, names=("from", "to"), sep=" "), False),
    "pandas without header": ("g.csv", lambda g: _pandas(g, header=False), False),
    "pandas without header, with index": ("g.csv", lambda g: _pandas(g, index=True, header=False), False),
    "pandas, default names": ("g.csv", _with_default_names, False),
    "pandas, other names": ("g.csv", lambda g: _pandas(g, names=("person", "friend")), False),
    "pandas, missing weights": ("g.csv", lambda g: _frame(g).assign(weight=None).to_csv(index=False).encode(), False),
    "pandas adjacency matrix": ("g.csv", lambda g: nx.to_pandas_adjacency(g).to_csv().encode(), True),
    "pandas adjacency matrix, tabs": ("g.tsv", lambda g: nx.to_pandas_adjacency(g).to_csv(sep="\t").encode(), True),
    "NumPy matrix": ("g.txt", _numpy, True),
    "NumPy matrix, integers": ("g.csv", lambda g: _numpy(g, fmt="%g", delimiter=","), True),
    "polars": ("g.csv", _polars, False),
    "polars, tabs": ("g.tsv", lambda g: _polars(g, separator="\t"), False),
    "polars without header": ("g.csv", lambda g: _polars(g, include_header=False), False),
    "R": ("g.csv", _r, False),
    "SNAP": ("g.txt", _snap, False),
    "KONECT": ("g.txt", _konect, False),
    "METIS, .txt": ("g.txt", _metis, True),
    "DIMACS, .txt": ("g.txt", _dimacs, True),
    "counts first": ("g.txt", _counts_first, False),
    "arrows": ("g.txt", lambda g: _lines([], g, lambda a, b, w: f"{a}->{b}"), False),
    "gzip": ("g.csv.gz", lambda g: gzip.compress(_pandas(g)), False),
}  # fmt: skip
WITH_FRAMES = find_spec("pandas") is not None and find_spec("polars") is not None
if not WITH_FRAMES:
    FORMS = {name: form for name, form in FORMS.items() if not name.startswith(("pandas", "polars", "R", "gzip"))}
UNWEIGHTED = {
    "networkx edge list, no data", "networkx edge list, commas", "networkx edge list, tabs", "networkx adjacency list",
    "networkx adjacency list, .txt", "networkx adjacency list, no comments", "networkx multi-line adjacency list, .txt",
    "graph6, .txt", "pandas, missing weights", "SNAP", "METIS, .txt", "DIMACS, .txt",
    "counts first", "arrows",
}  # fmt: skip
NUMBERED = {"NumPy matrix", "NumPy matrix, integers", "METIS, .txt", "graph6, .txt", "DIMACS, .txt"}  # files without names


def _each_line(change):
    return lambda content, rng: "\n".join(change(line) if line else line for line in content.decode().split("\n")).encode()


def _insert(text):
    def insert(content, rng):
        lines = content.decode().split("\n")
        lines.insert(rng.randint(1, max(1, len(lines) - 1)), text)
        return "\n".join(lines).encode()

    return insert


def _repeat(content, rng):
    lines = content.decode().rstrip("\n").split("\n")
    return "\n".join([*lines, lines[-1], ""]).encode()


def _other_separator(content, rng):
    *_, last = lines = content.decode().rstrip("\n").split("\n")
    sign = next((sign for sign in "\t;," if all(sign in line for line in lines if line[:1] != "#")), " ")
    return "\n".join([*lines, last.replace(sign, "\t" if sign == ";" else ";"), ""]).encode()


# Changes of a file that leave the graph as it is, if they are understood.
FAULTS = {
    "none": lambda content, rng: content,
    "byte order mark": lambda content, rng: b"\xef\xbb\xbf" + content,
    "UTF-16": lambda content, rng: content.decode().encode("utf-16"),
    "Latin-1": lambda content, rng: content.decode().encode("latin1"),
    "Windows line ends": lambda content, rng: content.replace(b"\n", b"\r\n"),
    "old Macintosh line ends": lambda content, rng: content.replace(b"\n", b"\r"),
    "blanks at ends": _each_line(lambda line: line + "  "),
    "comma at ends": _each_line(lambda line: line + ","),
    "comment line": _insert("# measured in May"),
    "empty line": _insert(""),
    "comments at ends": _each_line(lambda line: line + " # seen"),
    "last line again": _repeat,
    "footer": lambda content, rng: content.rstrip(b"\n") + b"\nTotal\n",
    "other separator": _other_separator,
    "cut": lambda content, rng: content[: -rng.randint(1, 3)],
}  # fmt: skip
LISTS = ("networkx edge list", "networkx weighted", "pandas", "polars", "R", "SNAP", "gzip")  # a line may be repeated
CHANGES_GRAPH = ("footer", "cut")  # refused, or read as one node or one edge less; see `verdict`


def expected(graph, form):
    """Return the labels, and the edges with their weights, that a file has; edges of a graph without directions sorted."""
    _, _, whole = FORMS[form]
    weights = nx.is_weighted(graph) and form not in UNWEIGHTED
    numbers = {name: str(k) for k, name in enumerate(graph)} if form in NUMBERED else {name: str(name) for name in graph}
    edges = {}
    for a, b, weight in graph.edges(data="weight"):
        ends = (numbers[a], numbers[b])
        edges[ends if graph.is_directed() else tuple(sorted(ends))] = float(weight) if weights else None
    named = list(numbers.values()) if whole else list(dict.fromkeys(numbers[name] for edge in graph.edges for name in edge))
    if all(name.isdigit() for name in named) and not form.startswith(("GraphML", "GML", "JSON")) and "matrix" not in form:
        named.sort(key=int)
    return named, edges


def understood(graph):
    """Return the labels and edges of a graph that was read, as `expected` does."""
    names = labels(graph)
    return names, {
        (names[a], names[b]) if graph.is_directed() else tuple(sorted((names[a], names[b]))): weight
        for a, b, weight in graph.edges(data="weight")
    }


def verdict(folder, graph, form, fault, rng):
    """Return "right", "noted", "refused" or "wrong" for a file with a graph, and its line or the difference.

    The unit of weight is 1: a file whose weights are all 1 may have none.
    """
    name, write, _ = FORMS[form]
    if fault in ("last line again", "other separator") and (
        not form.startswith(LISTS) or "matrix" in form or "with index" in form
    ):  # their last line is no edge
        fault = "none"
    if form == "networkx adjacency list, no comments":  # names with blanks make it a valid list of other edges
        graph = nx.relabel_nodes(graph, {node: node.replace(" ", "_") for node in graph if isinstance(node, str)})
    path = folder / name
    content = write(graph)
    with suppress(UnicodeError):  # the file is compressed, or Latin-1 has not all of its letters: it has no fault
        content = FAULTS[fault](content, rng)
    path.write_bytes(content)
    states_direction = path.suffix in (".graphml", ".gml", ".json", ".xml")
    try:
        found = read(str(path), **({"directed": True} if graph.is_directed() and not states_direction else {}))
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert str(error).startswith(name)  # noqa: PT017
        return "refused", str(error)
    wanted, got = expected(graph, form), understood(found)
    facts = found.graph["facts"]
    if form == "networkx adjacency list, no comments":  # read as a list of edges, which names nodes in another order
        wanted, got = ((sorted(names), edges) for names, edges in (wanted, got))
    same = wanted[0] == got[0] and _unit(wanted[1]) == _unit(got[1])
    if same:
        return ("noted" if found.graph["notes"] or facts.dropped_lines else "right"), facts.line
    if fault in CHANGES_GRAPH and (facts.isolated or not path.read_bytes().endswith(b"\n")):
        return "noted", facts.line
    if any("was read as an edge" in note for note in facts.notes):
        return "noted", facts.line
    return "wrong", f"{path.read_bytes()[:300]!r}: wanted {wanted}, got {got}"


def _unit(edges):
    return {ends: weight or 1.0 for ends, weight in edges.items()}
