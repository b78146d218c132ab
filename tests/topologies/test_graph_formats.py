"""Formats of graph files that users bring: read right, or refused in one line with the remedy; never another graph."""

import gzip
import json
from random import Random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import p2pfl
from p2pfl.sim.cli.main import main
from p2pfl.topologies import labels, read
from tests.support.graph_files import FAULTS, FORMS, random_graph, verdict


@pytest.fixture
def write(tmp_path):
    def make(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make


def found(graph):
    """Return the labels in order, and the edges by label, with their weights if there are any."""
    names = labels(graph)
    return names, [
        (names[a], names[b], *([data["weight"]] if "weight" in data else []))
        for a, b, data in sorted(graph.edges(data=True))
    ]


def refusal(file, **options):
    with pytest.raises(ValueError) as refused:  # noqa: PT011, the text is what is tested
        read(file, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


PATH = [("a", "b"), ("b", "c")]
TRIANGLE = [("0", "1"), ("0", "2"), ("1", "2")]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from(list(FORMS)), st.sampled_from(list(FAULTS)))
def test_file_of_any_form_and_fault_is_never_another_graph(tmp_path_factory, number, form, fault):
    rng = Random(number)
    outcome, text = verdict(tmp_path_factory.mktemp("graph"), random_graph(rng), form, fault, rng)
    assert outcome in ("right", "noted", "refused"), text


# networkx's lists


def test_edge_list_with_two_attributes_is_the_path(write, tmp_path):
    graph = nx.path_graph(12)
    nx.set_edge_attributes(graph, {edge: {"weight": 1.0 + edge[0], "cost": 3} for edge in graph.edges})
    nx.write_edgelist(graph, tmp_path / "two.edgelist")
    names, edges = found(read(str(tmp_path / "two.edgelist")))
    assert names == [str(k) for k in range(12)]
    assert edges == [(str(k), str(k + 1), 1.0 + k) for k in range(11)]


@pytest.mark.parametrize("delimiter", [" ", ",", "\t", ";"])
def test_default_edge_list_of_networkx_is_read(tmp_path, delimiter):
    graph = nx.Graph([("anna", "bert"), ("bert", "carl")])
    nx.write_edgelist(graph, tmp_path / "plain.edgelist", delimiter=delimiter)
    assert found(read(str(tmp_path / "plain.edgelist"))) == (["anna", "bert", "carl"], [("anna", "bert"), ("bert", "carl")])
    graph["anna"]["bert"]["weight"] = 2.5
    nx.write_edgelist(graph, tmp_path / "plain.edgelist", delimiter=delimiter)
    graph = read(str(tmp_path / "plain.edgelist"))
    assert found(graph)[1] == [("anna", "bert", 2.5), ("bert", "carl", 1.0)]
    assert graph.graph["facts"].unweighted == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "0 1 {'weight': 1}\n1 2 {'weight': nan}\n",
            "line 2: the attributes \"{'weight': nan}\" are not a dict of plain values",
        ),
        ("0 1 {'weight': 'x'}\n", "line 1: a weight must be a positive number, got 'x'"),
        ("0 1 {'weight': True}\n", "line 1: a weight must be a positive number, got True"),
        ("0 1 {'weight': np.float64(1.0)}\n", "line 1: the attributes \"{'weight': np.float64(1.0)}\" are not a dict"),
        (
            "0 1 {}\n1 2\n",
            "line 2: other lines end in a dict of attributes, {...}, and this one does not; write the graph with",
        ),
        ("0 1 {}\n1,2,{}\n", "line 2: the separator before the attributes differs from that of other lines"),
        ("0 1 " + "{'a':" * 2_000 + "1" + "}" * 2_000, "line 1: the attributes \"{'a':"),
        (
            "(0, 0) (0, 1) {}\n",
            "line 1: the name '(0,' has a bracket without its partner; relabel nodes that are tuples with",
        ),
        ("New York Oslo {}\n", "line 1: expected two names before the attributes, found more; write the list with"),
        ("0 2\n1 {}\n2 {}\n1 0\n2 0\n", "line 1: other lines end in a dict of attributes, {...}, and this one does not"),
        ("#x.py\n# GMT Mon\n# \n0 1\n1\n", "networkx has written the file as an adjacency list; name it .adjlist, or"),
        ("0 1 2\n1 2\n2\n", "line 1: '2' may be a weight, or a node of an adjacency list; name an adjacency list .adjlist"),
        (
            "0 1 2 3\n1 2\n2\n3\n",
            "line 1: expected 'node', 'source target' or 'source target weight', found 4 fields; name the",
        ),
    ],
)
def test_other_lists_of_networkx_are_refused_with_the_remedy(write, text, message):
    assert refusal(write("net.txt", text)).startswith(f"net.txt: {message}")


def test_adjacency_list_needs_a_line_for_each_node(write):
    assert found(read(write("net.adjlist", "0 1 2\n1 2\n2\n"))) == (["0", "1", "2"], TRIANGLE)
    assert found(read(write("net.adjlist", "0 1 2\n1 0 2\n2 0 1\n"))) == (["0", "1", "2"], TRIANGLE)
    both_ways = read(write("net.adjlist", "a b\nb a\n"), directed=True)
    assert (both_ways.is_directed(), both_ways.number_of_edges()) == (True, 2)
    assert "line 1: 'York' begins no line, but each node must" in refusal(write("net.adjlist", "New York Oslo\nOslo\n"))
    assert "line 2: 'a' begins two lines" in refusal(write("net.adjlist", "a b\na c\nb\nc\n"))
    assert "a multi-line adjacency list is not read" in refusal(write("net.adjlist", "0 0\n1 0\n"))


# Names of columns


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("net.csv", "id_1,id_2\n2,1\n1,0\n0,2\n"),
        ("net.tsv", "from\tto\n0\t1\n1\t2\n2\t0\n"),
        ("net.csv", "FromNodeId;ToNodeId\n0;1\n1;2\n2;0\n"),
        ("net.txt", "u v\n0 1\n1 2\n2 0\n"),
        ("net.csv", "nodeA,nodeB\n0,1\n1,2\n2,0\n"),
        ("net.csv", '"person","friend"\n0,1\n1,2\n2,0\n'),
        ("net.csv", ",source,target\n0,0,1\n1,1,2\n2,2,0\n"),
        ("net.csv", '"from","to"\n"1",0,1\n"2",1,2\n"3",2,0\n'),
        ("net.txt", "# Undirected graph\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n"),
        ("net.csv", "Source,Target,Type,Id,Label\n0,1,Undirected,0,\n1,2,Undirected,1,\n2,0,Undirected,2,\n"),
        ("net.csv", "kind,target,note,source\nx,0,,1\nx,1,,2\nx,2,,0\n"),
        ("net.csv", "\ufeff0,1,,\r\n1,2,,\r\n2,0,,\r\n"),
        ("net.csv", "source,target\r0,1\r1,2\r2,0\r"),
        ("net.csv", "source,target\n0,1\n1,2\n2,0\n".encode("utf-16")),
        ("net.csv.gz", gzip.compress(b"source,target\n0,1\n1,2\n2,0\n", mtime=0)),
        ("net.txt", "% sym unweighted\n% 3 3 3\n0 1\n1 2\n2 0\n"),
        ("net.txt", "0 1 1\n1 0 1\n1 1 0\n"),
        ("net.csv", ",0,1,2\n0,0.0,1.0,1.0\n1,1.0,0.0,1.0\n2,1.0,1.0,0.0\n"),
        ("net.txt", "0 1 2\n0 0 1 1\n1 1 0 1\n2 1 1 0\n"),
    ],
)
def test_names_of_columns_and_dialects_are_understood(write, name, text):
    assert found(read(write(name, text))) == (["0", "1", "2"], TRIANGLE)


def test_weight_is_the_column_of_that_name(write):
    graph = read(write("net.csv", "source,target,year,Weight\na,b,1999,2\nb,c,2001,0.5\n"))
    assert found(graph)[1] == [("a", "b", 2.0), ("b", "c", 0.5)]
    assert "columns left out: 'year'" in graph.graph["facts"].line
    assert found(read(write("net.csv", "source,target,year\na,b,1999\nb,c,2001\n")))[1] == PATH


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("person,friend\n1,2\n2,3\n", "line 1: 'person', 'friend' look like names of columns; call the two columns"),
        ("person,friend\nanna,bert\nbert,carl\n", "line 1: 'person' and 'friend' occur in no other line"),
        ("person,friend,years\nanna,bert,2\nbert,carl,1\n", "line 1: 'person', 'friend', 'years' look like names of"),
        ("from,to\nfrom,b\n", "line 1: ['from', 'to'] may be names of columns or of nodes"),
        ("source,target\n1,2\nsource,target\n2,3\n", "line 1: ['source', 'target'] may be names of columns or of nodes"),
        ("node1,node2\nnode3,node4\n", "line 1: ['node1', 'node2'] may be names of columns or of nodes"),
        ("source,target\n", "line 1: it names columns, and no line with an edge follows"),
        ("0,1\n0,1\n1,2\n", "line 1: 0, 1 may be names of columns that pandas has given"),
        (",0,1\n0,5,1\n1,1,2\n", "line 1: the rows may be an adjacency matrix, or edges"),
        (",0,1\n0,5,1\n1,1,2\n2,2,5\n", "line 1: '', '0', '1' look like names of columns"),
        ("0,5,7\n1,7,9\n", "line 1: the first column counts the lines, so that it may be an index, or the source"),
        ("1,Oslo\n2,Turin\n", "line 1: the first column counts the lines, as in a table of nodes"),
        ("Id,Label\n1,Oslo\n2,Turin\n", "line 1: ['Id', 'Label'] name the columns of a table of nodes"),
        ("1,2\n2,3\nTotal,3\n", "line 3: 'Total' is text, but all other names are integers"),
        ("Source,Target,Type\n1,2,Directed\n", "line 2: the edge is directed; set directed = true"),
        ("source,target\n1,\n", "line 2: expected 'node', 'source target' or 'source target weight', found an empty name"),
        ("source,target\n1,2,3\n", "line 2: the table has 2 columns, found 3 fields"),
        ("source,target,from,to\n1,2,3,4\n", "line 1: several columns may be the source and the target"),
    ],
)
def test_unclear_names_of_columns_are_refused_with_the_line(write, text, message):
    assert refusal(write("net.csv", text)).startswith(f"net.csv: {message}")


# Fields, names and weights


def test_hash_in_a_name_is_no_comment(write):
    urls = "http://x.org/a#b http://x.org/c#d\nhttp://x.org/c#d http://y.org\n"
    assert found(read(write("net.txt", urls)))[0] == ["http://x.org/a#b", "http://x.org/c#d", "http://y.org"]
    assert found(read(write("net.csv", "no #1,no #2\nno #2,C#\n")))[0] == ["no #1", "no #2", "C#"]
    commented = read(write("net.txt", "a b # far\nb c\n"))
    assert found(commented)[1] == PATH
    assert commented.graph["facts"].dropped["comments at ends of lines"] == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("net.txt", "a b #far\n", "line 1: '#' begins a comment or belongs to a name"),
        ("net.txt", "0 1#first\n1 2\n", "line 1: '#' begins a comment or belongs to a name"),
        ("net.csv", "a,b\n#1,b\n", "line 2: it is a comment, or a row whose first name begins with '#'"),
        ("net.csv", "New York # big,Oslo\n", "line 1: '# big,Oslo' is a comment or a part of a name"),
        ("net.csv", "a,b\nb;c\n", "line 2 has other separators than line 1, which has ','"),
        ("net.csv", "a,b\nb c\n", "line 2: it has blanks, but the other lines are separated by ','"),
        ("net.csv", "a;b;1,5\nb;c;2,5\n", "line 1: ';' and ',' are in every line, so that the separator is not clear"),
        ("net.txt", "a b 1,5\n", "line 1: both blanks and ',' separate numbers"),
        ("net.tsv", "0\t1\t1,5\n", "line 1: a weight must be a positive number, got '1,5'; write a decimal point"),
        ("net.txt", "a b 1_000\n", "line 1: a weight must be a positive number, got '1_000'"),
        ("net.txt", "Rio, RJ Oslo\n", "line 1: blanks or ',' may separate the fields; name the file .csv, or"),
        ("net.txt", "a->b\nb->c\n", "line 1: 'a->b' has an unknown separator"),
        ("net.txt", "a|b\nb|c\n", "line 1: 'a|b' has an unknown separator"),
        ("net.txt", "0:1:2:\n1:\n2:\n", "line 1: '0:1:2:' has an unknown separator"),
        ("net.csv", '"a,b\n', "line 1: a quote is not closed"),
        ("net.csv", "1.0,2\n2.0,3\n", "line 2: '2.0' and '2' may be one node; write equal names equally"),
        ("net.csv", "é,b\nb,e\u0301\n", "line 2: 'e\u0301' and 'é' may be one node"),
        ("net.txt", "0.5 1 2\n", "line 1: '0.5' is not the name of a node but a decimal number"),
        ("net.csv", "1,nan\n1,2\n", "line 1: 'nan' is a missing value; remove the line"),
        ("net.csv", "1,2\n\ufeff2,3\n", "line 2: the name '\\ufeff2' has an invisible character"),
        ("net.csv", "é,b".encode("latin1"), "the file is not UTF-8 text, nor UTF-16 with a byte order mark; convert it"),
        ("net.csv", "a,b".encode("utf-16-le"), "the file is not UTF-8 text: it has null characters"),
        ("net.csv.gz", gzip.compress(b"a,b\n", mtime=0)[:-9], "the compressed file is damaged"),
        ("net.txt", "0 2\n2 0\n", "line 1: the rows may be an adjacency matrix, or edges"),
        (
            "net.csv",
            ";A;B\nA;0;2\nB;1;0\n",
            "line 2: the matrix is not symmetric: the entry from A to B is 2, the other way",
        ),
        ("net.csv", ",A,B\nA,0,-1\nB,-1,0\n", "line 2: an entry of a matrix must be 0 or a positive number, got '-1'"),
    ],
)
def test_ambiguous_fields_are_refused_with_the_line(write, name, text, message):
    assert refusal(write(name, text)).startswith(f"{name}: {message}")


@pytest.mark.slow
def test_gzip_is_limited_after_decompression(write):
    bomb = gzip.compress(b"\n" * (33 * 2**20))
    assert len(bomb) < 100_000
    assert refusal(write("net.csv.gz", bomb)) == "net.csv.gz is larger than 32 MiB, the maximum"


def test_star_of_one_letter_is_read(write):
    assert found(read(write("net.txt", "a b 2\na c 1\n")))[1] == [("a", "b", 2.0), ("a", "c", 1.0)]


def test_unusual_names_are_noted(write):
    assert read(write("net.txt", "01 1\n1 2\n")).graph["notes"] == ["'01' and '1' are two nodes"]
    assert read(write("net.csv", "NA,UK\nUK,FR\n")).graph["notes"] == ["a node is called 'NA'"]
    assert read(write("net.txt", "DQc\n")).graph["notes"] == ["each line has one field: nodes without edges"]
    assert found(read(write("net.txt", "10 -2\n-2 9\n-10 9\n")))[0] == ["-10", "-2", "9", "10"]
    (note,) = read(write("net.txt", "# Directed graph: x\n0 1\n1 2\n")).graph["notes"]
    assert note.startswith("a comment says that the graph is directed")


# Other formats


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "net.gexf",
            "",
            'GEXF is not read; convert the file to GraphML: python -c "import networkx as nx; nx.write_graphml(',
        ),
        ("net.xml", "<gexf/>", "line 1: the file is not GraphML: it begins with <gexf>; convert it"),
        ("net.net", "", "Pajek is not read"),
        ("net.npz", "", "an archive of NumPy or SciPy is not read"),
        ("net.pickle", "", "a pickle is not read"),
        ("net.txt", "*Vertices 2\n1 a\n2 b\n*Edges\n1 2\n", "line 1: Pajek is not read"),
        ("net.txt", "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 1\n2 1\n", "line 1: Matrix Market is not read"),
        ("net.txt", "c road\np edge 3 2\ne 1 2\ne 2 3\n", "line 1: DIMACS is not read"),
        ("net.txt", "e 1 2\ne 2 3\n", "line 1: DIMACS is not read"),
        ("net.txt", "graph G {\n a -- b;\n}\n", "line 1: DOT is not read"),
        ("net.txt", "dl n=3\n", "line 1: UCINET DL is not read"),
        ("net.txt", ">>graph6<<DQc\n", "line 1: graph6 is not read"),
        ("net.txt", "1 First\n2 Second\n#\n1 2\n", "line 3: '#' alone divides nodes from edges"),
        ("net.txt", "3 2\n2\n1 3\n2\n", "line 1: 3 2 may be the number of nodes or edges"),
        ("net.txt", "5 5\n2 5\n1 3\n2 4\n3 5\n1 4\n", "line 1: 5 5 may be the number of nodes or edges"),
        ("net.txt", "4 4 3\n1 2\n2 3\n3 4\n", "line 1: 4 4 3 may be the number of nodes or edges"),
        ("net.txt", "4\n0 1\n1 2\n2 3\n", "line 1: 4 may be the number of nodes or edges"),
        ("net.txt", "<graphml/>", "the file begins like XML; give it a name that ends in .graphml"),
        ("net.txt", '{"nodes": []}', "the file begins like JSON; give it a name that ends in .json"),
        ("net.txt", "graph [\n]", "the file begins like GML; give it a name that ends in .gml"),
        ("net.json", json.dumps(nx.adjacency_data(nx.path_graph(3))), "networkx's adjacency_data is not read"),
        ("net.json", json.dumps(nx.cytoscape_data(nx.path_graph(3))), "Cytoscape's JSON is not read"),
        ("net.json", '{"nodes": [{"name": "a"}], "links": [{"source": 0, "target": 0}]}', "node 0 has no 'id'"),
        ("net.json", '{"nodes": [{"id": 1}, {"id": "1"}], "links": []}', "two nodes have the id '1'"),
        (
            "net.json",
            '{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 2}]}',
            "edge 0 refers to '2', which is not a node",
        ),
        ("net.json", "[" * 100_000, "the JSON is malformed"),
        ("net.json", "[]", "the JSON must be an object with 'nodes' and 'edges'"),
        ("net.gml", "graph [ " * 100_000, "the GML is malformed"),
        (
            "net.gml",
            "graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] edge [ source 1 target 0 ] ]",
            "the GML is malformed: edge #1 (1--0) is duplicated; add the line 'multigraph 1' to the graph",
        ),
        ("net.graphml", '<graphml><graph edgedefault="Directed"/></graphml>', "line 1: edgedefault must be 'directed' or"),
    ],
)
def test_other_formats_are_refused_by_name(write, name, text, message):
    assert refusal(write(name, text)).startswith(f"{name}: {message}")


def test_node_link_json_and_gml_keep_attributes(write, tmp_path):
    graph = nx.DiGraph([("Oslo", "Rio"), ("Rio", "Bern")])
    graph.nodes["Oslo"].update(label="Oslo", latitude=59.9, longitude=10.7)
    graph["Oslo"]["Rio"]["weight"] = 2.5
    nx.write_gml(graph, tmp_path / "net.gml")
    for file in (write("net.json", json.dumps(nx.node_link_data(graph, edges="edges"))), str(tmp_path / "net.gml")):
        again = read(file)
        assert again.is_directed()
        assert found(again) == (["Oslo", "Rio", "Bern"], [("Oslo", "Rio", 2.5), ("Rio", "Bern", 1.0)])
        assert again.nodes[0]["latitude"] == "59.9"
    assert "states itself whether it is directed" in refusal(file, directed=True)


def test_graphml_weight_is_found_by_the_id_of_its_key(write):
    body = (
        '<graph edgedefault="undirected"><node id="a"/><node id="b"/><edge source="a" target="b"><data key="weight">3</data>'
    )
    for key in ('<key id="weight" for="edge"/>', '<key id="weight" for="node" attr.name="weight"/>'):
        graph = read(write("net.graphml", f"<graphml>{key}{body}</edge></graph></graphml>"))
        assert found(graph)[1] == [("a", "b", 3.0)]


# Facts


@pytest.mark.slow
def test_facts_are_shown_by_both_commands_and_in_the_summary(write, tmp_path, capsys):
    file = write("net.csv", "id_1,id_2,weight,year\n2,1,3,1\n\n1,0,,2\n0,0,1,3\n1,2,2,4\n")
    line = (
        "net.csv: table of edges separated by ',', 3 nodes, 2 edges; column 'id_1' is the source, 'id_2' is the target,"
        " 'weight' is the weight; columns left out: 'year'; the largest weight of parallel edges counts; undirected;"
        " weights from 1 to 3; 1 edge without a weight, which counts as 1;"
        " left out: empty lines 1, edges from nodes to themselves 1, parallel edges 1"
    )
    assert main(["topology", file]) == 0
    assert capsys.readouterr().out.startswith(f"graph: {line}\ntopology: net\nnodes: 3\n")
    assert main(["topology", file, "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)["graph"]
    assert (facts["line"], facts["nodes"], facts["weights"], facts["unweighted"]) == (line, 3, [1.0, 3.0], 1)
    keys = {"rounds": 1, "task": {"name": "concept-shift", "samples": 12}, "policy": "local", "topology": {"file": file}}
    (result,) = p2pfl.simulate(keys)
    assert result.summary["graph"] == [facts]
    (named,) = p2pfl.simulate(keys | {"topology": "ring", "nodes": 3})
    assert "graph" not in named.summary


@pytest.mark.slow
def test_run_prints_the_line_of_a_graph_once(write, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("net.csv", "source,target\n0,1\n1,2\n")
    text = 'rounds = 1\nseeds = [0, 1]\npolicy = "local"\ntask = { name = "concept-shift", samples = 12 }\n'
    write("study.toml", text + 'topology = { file = "net.csv" }\n')
    assert main(["run", "study.toml", "--engine", "local", "--no-report"]) == 0
    assert capsys.readouterr().out.count("graph: net.csv: table of edges separated by ','") == 1


# Matrices, and files of spreadsheets


def test_matrix_that_is_symmetric_but_for_rounding_is_undirected(write):
    rows = "a,0,0.1,0.30000000000000004\nb,0.1,0,0.2\nc,0.3,0.2,0\n"
    assert read(write("g.csv", f",a,b,c\n{rows}")).number_of_edges() == 3


SQUARE = "0,1,0,1\n1,0,1,0\n0,1,0,1\n1,0,1,0\n"


@pytest.mark.parametrize("names", ["a,b,c,d", "0,1,2,3", "node1,node2,node3,node4"])
def test_matrix_with_names_of_columns_only_is_read(write, names):
    graph = read(write("g.csv", f"{names}\n{SQUARE}"))
    assert (labels(graph), graph.number_of_edges()) == (names.split(","), 4)


def test_square_table_with_names_of_an_edge_is_no_matrix(write):
    rows = "1,2,5,0\n2,3,5,1\n3,4,5,2\n4,1,5,3\n"
    assert read(write("g.csv", f"source,target,weight,id\n{rows}")).number_of_edges() == 4
    assert "may be an adjacency matrix with names of its columns" in refusal(write("g.csv", f"a,b,c,d\n{rows}"))


@pytest.mark.parametrize(
    ("entry", "shown"),
    [("", "''"), ("inf", "'inf'"), ("NaN", "'NaN'"), ("False", "'False'")],
    ids=["empty", "inf", "nan", "bool"],
)
def test_entry_that_is_no_weight_is_refused_by_its_line(write, entry, shown):
    for names in ("abcd", "0123"):
        rows = "".join(f"{a},{','.join(entry if a == b else '1' for b in names)}\n" for a in names)
        text = f",{','.join(names)}\n{rows}"
        fault = f"an entry of a matrix must be 0 or a positive number, got {shown}"
        assert refusal(write("g.csv", text)) == f"g.csv: line 2: {fault}; write 0 where there is no edge"


def test_adjacency_list_with_some_edges_named_twice_is_noted(write, tmp_path):
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    nx.write_adjlist(graph, tmp_path / "g.adjlist")
    note = "1 of the edges are named by both of their nodes, others by one, and all were used both ways; see the option"
    file = str(tmp_path / "g.adjlist")
    assert read(file).graph["notes"] == [f"{note} directed"]
    assert read(file, directed=False).graph["notes"] == []
    assert read(file, directed=True).number_of_edges() == 4
    nx.write_adjlist(graph.to_undirected().to_directed(), file)
    assert read(file).graph["notes"] == []


def test_lines_that_only_spreadsheets_need(write):
    assert found(read(write("g.csv", "source,target\na,b\n,\nb,c\n,,\n")))[1] == PATH
    assert (
        refusal(write("g.csv", "sep=;\nsource;target\na;b\n")) == "g.csv: line 1: 'sep=;' is for Excel only; remove the line"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a -> b\nb -> c\n", "line 1: '->' stands between the nodes; remove it in each line"),
        ("0: 1 2\n1: 0\n2: 0\n", "line 1: '0:' ends in a colon, as in an adjacency list; remove the colons"),
        ("from,to,directed\na,b,TRUE\n", "line 2: the edge is directed; set directed = true, or false"),
        (";a;b\na;0;0,5\nb;0,5;0\n", "must be 0 or a positive number, got '0,5'; write a decimal point"),
        (",a,b,c\nb,1,0,1\na,0,1,0\nc,0,1,0\n", "a matrix needs equal names of rows and of columns, in one order"),
    ],
    ids=["arrow", "colon", "directed", "comma", "order"],
)
def test_lists_and_matrices_of_other_dialects_are_refused(write, text, message):
    assert message in refusal(write("g.csv" if "," in text else "g.txt", text))
