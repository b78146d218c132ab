"""Graphs from files: imported and ignored data, and refusals of harmful files."""

import json
import os
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.sim.cli.main import main
from p2pfl.sim.scenario.scenario import load, resolve
from p2pfl.sim.scenario.sweep import parse, sweep
from p2pfl.sim.scenario.topology import topology
from p2pfl.topologies import files, labels, neighbours, properties, read
from tests.support.depth import spread
from tests.support.extras import needs_torch

HEAD = '<?xml version="1.0" encoding="utf-8"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
KEYS = """
<key id="a" for="node" attr.name="Latitude" attr.type="double"/><key id="o" for="node" attr.name="Longitude"/>
<key id="l" for="node" attr.name="label"/><key id="w" for="edge" attr.name="weight"><default>2.5</default></key>
<key id="g" for="graph" attr.name="label"/><key id="x" for="node" attr.name="Country"/>"""
SMALL = {"rounds": 2, "task": {"name": "concept-shift", "samples": 12}, "policy": {"name": "random", "neighbours": 2}}


@pytest.fixture
def write(tmp_path):
    def make(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make


def graphml(body, keys=KEYS, default="undirected"):
    return f'{HEAD}{keys}<graph edgedefault="{default}"><data key="g">Net</data>{body}</graph></graphml>'


def refusal(file, **options):
    with pytest.raises(ValueError) as refused:  # noqa: PT011, the text is what is tested
        read(file, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def edges(graph):
    return {(i, j): attributes for i, j, attributes in graph.edges(data=True)}


# Lists of edges


@pytest.mark.parametrize("separator", [",", ";", "\t", " ", "   ", " , "])
def test_edge_list_with_any_separator_is_read(write, separator):
    lines = [["anna", "bert"], ["bert", "carl", "2.5"], ["dora"]]
    graph = read(write("net.edges", "".join(separator.join(line) + "\r\n" for line in lines)))
    assert labels(graph) == ["anna", "bert", "carl", "dora"]
    assert neighbours(graph) == [(1,), (0, 2), (1,), ()]
    assert edges(graph) == {(0, 1): {"weight": 1.0}, (1, 2): {"weight": 2.5}}
    assert (graph.graph["name"], graph.graph["notes"]) == ("net", [])


def test_edge_list_skips_comments_heading_and_empty_lines(write):
    text = "\ufeff# who knows whom\n\nSource,Target,Weight\nNew York, Los Angeles, 3 # far\nLos Angeles,Rio,\n"
    graph = read(write("net.csv", text))
    assert labels(graph) == ["New York", "Los Angeles", "Rio"]
    assert edges(graph) == {(0, 1): {"weight": 3.0}, (1, 2): {"weight": 1.0}}


def test_edge_list_with_numeric_nodes_keeps_numbers(write):
    graph = read(write("net.txt", "10 2\n0 10\n3\n1 0\n" + "".join(f"{k} 0\n" for k in range(4, 10))))
    assert labels(graph) == [str(k) for k in range(11)]
    assert neighbours(graph)[10] == (0, 2)
    assert neighbours(graph)[3] == ()


def test_edge_list_without_weights_has_none(write):
    assert edges(read(write("net.txt", "a b\n"))) == {(0, 1): {}}


def test_edge_list_merges_parallel_edges_and_drops_loops(write):
    graph = read(write("net.txt", "a b 2\nb a 5\na b 3\na a 9\nb b\nc c\n"))
    assert type(graph) is nx.Graph
    assert edges(graph) == {(0, 1): {"weight": 5.0}}
    assert labels(graph) == ["a", "b", "c"]
    assert graph.graph["notes"] == ["left out: 3 edges from nodes to themselves", "left out: 2 parallel edges"]


def test_directed_edge_list_points_to_the_fetching_node(write):
    file = write("net.txt", "a b\nb c\nc b\na b\n")
    graph = read(file, directed=True)
    assert type(graph) is nx.DiGraph
    assert neighbours(graph) == [(), (0, 2), (1,)]
    assert neighbours(read(file)) == [(1,), (0, 2), (1,)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("net.csv", "", "net.csv: the file has no nodes"),
        ("net.csv", "# nothing\n", "net.csv: the file has no nodes"),
        ("net.csv", "a,b\nc,d,e\n", "net.csv: line 2: a weight must be a positive number, got 'e'"),
        ("net.txt", "a b 0\n", "net.txt: line 1: a weight must be a positive number, got '0'"),
        ("net.txt", "a b nan\n", "net.txt: line 1: a weight must be a positive number, got 'nan'"),
        ("net.txt", "a b inf\n", "net.txt: line 1: a weight must be a positive number, got 'inf'"),
        ("net.txt", "a b -1\n", "net.txt: line 1: a weight must be a positive number, got '-1'"),
        ("net.txt", "a b 1 2\n", "net.txt: line 1: expected 'node', 'source target' or 'source target weight'"),
        ("net.csv", "a,b\n,b\n", "net.csv: line 2: expected 'node', 'source target' or 'source target weight'"),
        ("net.txt", "x" * 10_001, "net.txt: line 1: the name of a node has more than 10000 characters"),
        ("net.txt", b"\xff\xfe\xfa", "net.txt: the file is not UTF-8 text"),
        ("net.gml", "graph []", "net.gml: the file has no nodes"),
        (
            "net.gml",
            'graph [\n comment "a\n\nb"\n node [ id 0 ]\n]',
            "net.gml: the GML is malformed: a text in double quotes",
        ),
        ("net.doc", "a b", "net.doc must be GraphML (.graphml, .xml), or GML (.gml), or node-link JSON (.json), or "),
    ],
)
def test_invalid_edge_list_reports_one_line(write, name, text, message):
    assert refusal(write(name, text)).startswith(message)


def test_read_of_missing_file_folder_or_pipe_is_refused(tmp_path):
    assert refusal(str(tmp_path / "none.graphml")) == f"the file {tmp_path / 'none.graphml'} does not exist"
    (tmp_path / "folder.txt").mkdir()
    assert refusal(str(tmp_path / "folder.txt")).endswith("does not exist")
    os.mkfifo(tmp_path / "pipe.txt")  # to open it would wait for ever
    assert refusal(str(tmp_path / "pipe.txt")).endswith("does not exist")


def test_file_beyond_size_limits_is_refused(write, tmp_path, monkeypatch):
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(files.LARGEST + 1)
    assert refusal(str(tmp_path / "huge.txt")) == "huge.txt is larger than 32 MiB, the maximum"
    monkeypatch.setattr(files, "MOST_NODES", 3)
    monkeypatch.setattr(files, "MOST_EDGES", 4)
    assert len(read(write("net.txt", "a b\nb c\n"))) == 3
    assert refusal(write("net.txt", "a b\nb c\nc d\n")) == "net.txt: line 3: more than 3 nodes or 4 edges, the maximum"
    assert refusal(write("net.txt", "a b\n" * 5)) == "net.txt: line 5: more than 3 nodes or 4 edges, the maximum"
    nodes = '<node id="a"/><node id="b"/><node id="c"/>'
    assert len(read(write("net.xml", graphml(nodes + '<edge source="a" target="b"/>' * 4)))) == 3
    assert "more than 3 nodes, the maximum" in refusal(write("net.xml", graphml(nodes + '<node id="d"/>')))
    assert "more than 4 edges, the maximum" in refusal(
        write("net.xml", graphml(nodes + '<edge source="a" target="b"/>' * 5))
    )


@given(st.binary(max_size=300))
@example(b"#")
def test_read_of_any_bytes_is_graph_or_one_line(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    for name in ("net.txt", "net.graphml"):
        (folder / name).write_bytes(content)
        try:
            graph = read(str(folder / name))
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert properties(graph)["nodes"] == len(graph) > 0


# GraphML


def test_graphml_coordinates_labels_and_weights_are_read(write):
    body = """
    <node id="7"><data key="l">Oslo</data><data key="a">59.91</data><data key="o"> 10.75 </data><data key="x">N</data></node>
    <node id="n"/>
    <edge source="n" target="7"/><edge id="e" source="7" target="n"><data key="w">4</data></edge>"""
    graph = read(write("net.graphml", graphml(body)))
    assert list(graph.nodes(data=True)) == [
        (0, {"label": "Oslo", "latitude": "59.91", "longitude": "10.75"}),
        (1, {"label": "n"}),
    ]
    assert edges(graph) == {(0, 1): {"weight": 4.0}}  # the other edge has the default, 2.5
    assert graph.graph["name"] == "net"
    assert "left out: 1 parallel edge" in graph.graph["notes"]


def test_graphml_of_networkx_is_read_equally(tmp_path):
    graph = nx.DiGraph()
    graph.add_nodes_from("abcd", label="x")
    graph.add_weighted_edges_from([("a", "b", 1.5), ("b", "a", 2.0), ("c", "a", 1.0)])
    nx.write_graphml(graph, tmp_path / "net.graphml")
    found = read(str(tmp_path / "net.graphml"))
    assert neighbours(found) == neighbours(nx.read_graphml(tmp_path / "net.graphml")) == [(1, 2), (0,), (), ()]
    assert edges(found) == {(0, 1): {"weight": 1.5}, (1, 0): {"weight": 2.0}, (2, 0): {"weight": 1.0}}


def test_graphml_may_mix_directed_and_undirected_edges(write):
    body = '<node id="a"/><node id="b"/><node id="c"/><edge source="a" target="b"/>'
    body += '<edge source="b" target="c" directed="true"/>'
    assert neighbours(read(write("net.graphml", graphml(body)))) == [(1,), (0,), (1,)]


def test_graphml_ignores_foreign_elements_and_ports(write):
    body = """<node id="a"><port name="p"/><data key="l">A<y:S xmlns:y="urn:y"><y:Label>no</y:Label></y:S></data></node>
    <node id="b"/><edge source="a" target="b" sourceport="p"><data key="q">?</data></edge>"""
    graph = read(write("net.xml", graphml(body)))
    assert labels(graph) == ["A", "b"]
    assert graph.number_of_edges() == 1


BILLION = '<!DOCTYPE graphml [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
EXTERNAL = '<!DOCTYPE graphml [<!ENTITY i SYSTEM "file:///etc/passwd">'
NODE = '<graphml><graph edgedefault="undirected"><node id="&i;"/></graph></graphml>'


@pytest.mark.parametrize("entities", [BILLION + "]>", EXTERNAL + "]>", '<!DOCTYPE graphml SYSTEM "http://localhost/x.dtd">'])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_graphml_with_document_type_is_refused(write, entities, encoding):
    message = "evil.graphml: line 1: a document type declaration is not allowed; remove it"
    assert refusal(write("evil.graphml", (entities + NODE).encode(encoding))) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no element found"),
        ("<graphml>", "line 1: no element found"),
        ("<graphml>\n<graph></graphml>", "line 2: mismatched tag"),
        ("<svg/>", "line 1: the file is not GraphML: it begins with <svg>"),
        ("<graphml/>", "the file has no nodes"),
        (graphml(""), "the file has no nodes"),
        ("<graphml><graph><node/></graph></graphml>", "line 1: a node has no id"),
        ('<graphml><graph><node id="a"/>\n<node id="a"/></graph></graphml>', "line 2: two nodes have the id 'a'"),
        ('<graphml><graph><node id="a"/><edge source="a"/></graph></graphml>', "line 1: an edge has no source or no target"),
        (graphml('<node id="a"/><edge source="a" target="b"/>'), "an edge refers to 'b', which is not a node of the file"),
        (graphml('<node id="a"><graph/></node>'), "line 4: more than one graph, or a nested graph"),
        (graphml(f'<node id="{"x" * 10_001}"/>'), "line 4: an id has more than 10000 characters"),
        (graphml("<a>" * 100), "line 4: elements are nested more than 100 deep"),
        (graphml("<hyperedge/>"), "line 4: hyperedges are not supported"),
        (
            graphml(f'<node id="a"><data key="l">{"x" * 10_001}</data></node>'),
            "line 4: label has more than 10000 characters",
        ),
        (
            graphml('<node id="a"/><node id="b"/><edge source="a" target="b"><data key="w">no</data></edge>'),
            "a weight must be a positive number, got 'no'",
        ),
        ('<?xml version="1.0" encoding="x-none"?><graphml/>', "line 1: unknown encoding"),
        ("<graphml>&undefined;</graphml>", "line 1: undefined entity"),
    ],
)
def test_invalid_graphml_reports_one_line(write, text, message):
    assert refusal(write("net.graphml", text)).startswith(f"net.graphml: {message}")


def test_graphml_refuses_directed_option(write):
    file = write("net.graphml", graphml('<node id="a"/>'))
    assert "a GraphML file states itself whether it is directed" in refusal(file, directed=True)


# In a scenario


def scenario(file, *changes, **keys):
    (found,) = resolve(SMALL | {"topology": {"file": file}} | keys, changes, name="study", folder=".").runs
    return found


@pytest.mark.slow
def test_topology_file_sets_nodes_and_labels(write):
    file = write("net.edges", "anna bert 2\nbert carl\ndora\nanna anna\n")
    (result,) = p2pfl.simulate(SMALL | {"topology": {"file": file}})
    assert result.summary["nodes"] == 4
    assert result.summary["topology"] == "net"
    assert result.summary["labels"] == ["anna", "bert", "carl", "dora"]
    assert result.summary["topology_properties"]["degree"] == {"min": 0, "mean": 1.0, "max": 2}
    assert set(zip(result.edges["src"].tolist(), result.edges["dst"].tolist(), strict=True)) == {
        (0, 1),
        (1, 0),
        (1, 2),
        (2, 1),
    }
    assert result.notes == ["left out: 1 edge from a node to itself"]


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["modelled", "wire"])
def test_directed_topology_file_sets_direction_of_models(write, fidelity):
    file = write("net.edges", "0 1\n1 2\n2 0\n3 0\n")
    (result,) = p2pfl.simulate(SMALL | {"topology": {"file": file, "directed": True}, "fidelity": fidelity})
    found = set(zip(result.edges["src"].tolist(), result.edges["dst"].tolist(), strict=True))
    assert found == {(0, 1), (1, 2), (2, 0), (3, 0)}
    assert "labels" not in result.summary  # the labels are the numbers


@pytest.mark.slow
@needs_torch
def test_nodes_must_agree_with_topology_file(write):
    file = write("net.edges", "a b\nb c\n")
    assert scenario(file, nodes=3).nodes == 3
    for found in (scenario(file, nodes=4), scenario(file, "nodes=4")):
        with pytest.raises(ConfigurationError) as refused:
            p2pfl.simulate(SMALL | {"topology": found.topology, "nodes": found.nodes})
        assert str(refused.value) == "run 'scenario': nodes must be 3, as in net.edges, got 4; remove the key nodes"


def test_topology_file_of_run_replaces_topology_and_nodes(write):
    file = write("net.edges", "a b\nb c\n")
    base = SMALL | {"nodes": 20, "topology": {"name": "small-world", "degree": 6}}
    entry = {"run": [{"name": "x", "topology": {"file": file}}, {"name": "y"}]}
    first, second = resolve(base | entry, [], name="study", folder=".").runs
    assert (first.nodes, first.topology) == (3, {"name": "file", "file": file})
    assert (second.nodes, second.topology) == (20, {"name": "small-world", "degree": 6})
    (changed,) = resolve(base, [f"topology.file={file}", "topology.directed=true"], name="study", folder=".").runs
    assert (changed.nodes, changed.topology) == (3, {"name": "file", "file": file, "directed": True})
    (formed,) = resolve(base | {"forms": {"f": {"topology": {"file": file}}}}, ["form=f"], name="study", folder=".").runs
    assert formed.nodes == 3
    (back,) = resolve(SMALL | {"topology": {"file": file}}, ["topology.name=ring"], name="study", folder=".").runs
    assert (back.nodes, back.topology) == (3, {"name": "ring"})


def test_resolved_scenario_with_file_has_the_same_runs(write):
    file = resolve(SMALL | {"topology": {"file": write("net.edges", "a b\nb c\n")}}, [], name="study", folder=".")
    assert resolve(file.to_toml(), [], name="study", folder="/").runs == file.runs


def test_topology_file_is_searched_in_three_folders(write, tmp_path, monkeypatch):
    folders = {name: tmp_path / name for name in ("scenario", "current", "data")}
    for count, folder in enumerate(folders.values(), 2):
        folder.mkdir()
        (folder / "net.edges").write_text("".join(f"{k}\n" for k in range(count)))
    (folders["scenario"] / "study.toml").write_text('rounds = 1\ntopology = { file = "net.edges" }\n')
    monkeypatch.chdir(folders["current"])
    monkeypatch.setenv("P2PFL_DATA", str(folders["data"]))
    for count, folder in enumerate(folders.values(), 2):
        assert load(str(folders["scenario"] / "study.toml")).runs[0].nodes == count
        (folder / "net.edges").unlink()
    with pytest.raises(ConfigurationError) as refused:
        load(str(folders["scenario"] / "study.toml"))
    where = ", ".join(map(str, folders.values()))
    assert str(refused.value) == (
        f"study: topology.file: the file net.edges does not exist; searched in {where}, and among the shipped graphs:"
        " geant-2012"
    )


@pytest.mark.parametrize("given", [{"name": "geant-2012"}, {"file": "geant-2012.graphml"}, {"file": "geant-2012"}])
def test_any_scenario_can_name_a_shipped_graph(given):
    (run,) = resolve(SMALL | {"topology": given, "network": {"latency": "geography"}}, [], "study", "/").runs
    assert (run.nodes, run.topology["name"]) == (40, "file")
    assert labels(topology(run.topology, 40, 0))[0] == "Amsterdam"


def test_shipped_graph_can_be_varied_and_give_places():
    file = resolve(SMALL, [], "study", "/")
    ring, geant = sweep(file, parse(["topology.name=ring,geant-2012"])).runs
    assert (ring.nodes, geant.nodes, geant.varied) == (10, 40, {"topology.name": "geant-2012"})
    (changed,) = resolve(SMALL, ["topology.name=geant-2012"], "study", "/").runs
    assert (changed.nodes, changed.topology) == (40, geant.topology)
    (placed,) = resolve(SMALL, ["network.latency=geography", "network.places=geant-2012"], "study", "/").runs
    assert placed.network.places == geant.topology["file"]


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ({"file": 3}, "topology.file must be a string, got 3"),
        ({"file": "net.edges", "directd": True}, "unknown key 'topology.directd'; did you mean 'topology.directed'?"),
        ({"file": "net.edges", "name": "ring"}, "unknown key 'topology.file'; the topology 'ring' has no options"),
        ({"file": "bad.edges"}, "topology: bad.edges: line 1: a weight must be a positive number, got 'c'"),
        ({"name": "file"}, "topology: missing a required argument: 'file'"),
    ],
)
def test_invalid_topology_table_reports_one_line(write, tmp_path, monkeypatch, topology, message):
    write("net.edges", "a b\n")
    write("bad.edges", "a b c\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        p2pfl.simulate(SMALL | {"topology": topology})
    assert str(refused.value).removeprefix("run 'scenario'").removeprefix("scenario").removeprefix(": ") == message


@pytest.mark.slow
def test_topology_file_of_750_nodes_is_simulated(write):
    ring = "".join(f"{k} {(k + 1) % 750}\n{k} {(k + 7) % 750}\n" for k in range(750))
    (result,) = p2pfl.simulate(SMALL | {"rounds": 1, "topology": {"file": write("net.edges", ring)}})
    found = result.summary["topology_properties"]
    assert (result.summary["nodes"], found["edges"], found["degree"]["mean"], found["components"]) == (750, 1500, 4.0, 1)
    assert len(result.edges["src"]) == 1500  # two neighbours each


# Real graphs

ZOO = {  # nodes, edges without parallel ones and loops, nodes with coordinates
    "Abilene": (11, 14, 11),
    "Esnet": (68, 79, 17),
    "Garr201201": (61, 75, 48),
    "Cogentco": (197, 243, 186),
    "Arpanet196912": (4, 4, 4),
}


def zoo():
    folder = Path(os.environ.get("P2PFL_DATA", "/nonexistent")) / "topology"
    if not folder.is_dir():
        pytest.skip("P2PFL_DATA names no folder that has topology/, with graphs of the Internet Topology Zoo")
    return folder


@pytest.mark.parametrize("name", ZOO)
def test_read_internet_topology_zoo_equals_networkx(name):
    path = zoo() / f"{name}.graphml"
    graph = read(str(path))
    found = properties(graph)
    assert (found["nodes"], found["edges"], found["coordinates"]) == ZOO[name]
    assert found["components"] == 1
    other = nx.Graph(nx.read_graphml(path))
    assert neighbours(graph) == neighbours(other)
    assert labels(graph) == labels(other)
    assert found["diameter"] == nx.diameter(other)


@pytest.mark.slow
def test_real_graphs_run_with_geographic_latencies():
    for path in spread(sorted(zoo().glob("*.graphml")), 3):
        keys = {"topology": {"file": str(path)}, "network": {"latency": "geography"}, "deadline": 60.0}
        (result,) = p2pfl.simulate(SMALL | keys)
        assert result.summary["topology"] == path.stem
        assert result.summary["deadlines_expired"] == 0
        missing = result.summary["nodes"] - result.summary["topology_properties"]["coordinates"]
        assert any("without coordinates" in note for note in result.notes) == (missing > 0)


# The command


def test_topology_command_prints_properties(write, capsys):
    assert main(["topology", "k-regular", "--nodes", "12", "--set", "degree=2", "--seed", "3"]) == 0
    text = capsys.readouterr().out
    assert "nodes: 12\nedges: 12\n" in text
    assert "degree: min 2, mean 2, max 2" in text
    assert main(["topology", write("net.edges", "a b\nb c\n"), "--json", "--set", "directed=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["topology"], found["nodes"], found["labels"], found["directed"]) == ("net", 3, ["a", "b", "c"], True)
    assert found["diameter"] is None


def test_topology_command_notes_a_node_without_neighbours(capsys):
    assert main(["topology", "ring", "--nodes", "1"]) == 0
    assert "notes: a single node has no neighbours, so it trains alone\n" in capsys.readouterr().out
    assert main(["topology", "ring", "--nodes", "3"]) == 0
    assert "notes: none\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tourus"], "unknown topology 'tourus'; did you mean 'torus'?"),
        (["none.graphml"], "topology.file: the file none.graphml does not exist; searched in "),
        (["ring", "--nodes", "0"], "nodes must be 1 or more, got 0"),
        (["ring", "--set", "degree=3"], "unknown key 'topology.degree'; the topology 'ring' has no options"),
    ],
)
def test_topology_command_reports_errors_in_one_line(arguments, message, capsys):
    assert main(["topology", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
