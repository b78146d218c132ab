"""Drawing of the architecture: it matches the code, and is readable."""

from xml.etree import ElementTree

import pytest

from scripts.tools.architecture import Rules, load_rules
from scripts.tools.architecture_drawing import DRAWING, draw
from scripts.tools.source_tree import SourceTree

SVG = "{http://www.w3.org/2000/svg}"
PACKAGES = {"low": ("low",), "high": ("high",)}
RULES = Rules({"low": [], "high": ["low"]})


@pytest.fixture
def tree(tmp_path):
    """Return a tree of two packages; the upper one has three subpackages in a chain, and a shortcut."""
    files = {
        "low/a.py": "",
        "high/top.py": "import low.a",
        "high/cli/a.py": "import high.middle.a\nimport high.core.a\nimport low.a",
        "high/middle/a.py": "import high.core.a",
        "high/core/a.py": "import low.a",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return SourceTree(tmp_path, PACKAGES)


def read(svg):
    return ElementTree.fromstring(svg)


def boxes(svg):
    kinds = [rect for rect in read(svg).iter(f"{SVG}rect") if rect.get("class") == "box"]
    return [tuple(float(rect.get(key)) for key in ("x", "y", "width", "height")) for rect in kinds]


@pytest.mark.slow
def test_committed_drawing_equals_the_code():
    assert DRAWING.read_text(encoding="utf-8") == draw(SourceTree(), load_rules()), "run scripts/architecture-drawing"


def test_drawing_has_box_per_subpackage_and_single_arrows(tree):
    svg = draw(tree, RULES)
    texts = [text.text for text in read(svg).iter(f"{SVG}text")]
    assert [text for text in texts if not text.endswith("module")] == ["high", "cli", "middle", "core", "low"]
    assert [title.text for title in read(svg).iter(f"{SVG}title")][1:] == [
        "cli imports middle",  # this implies core: no separate arrow
        "middle imports core",
        "high imports low",
    ]


def test_drawing_of_the_same_tree_is_the_same(tree, tmp_path):
    assert draw(tree, RULES) == draw(SourceTree(tmp_path, PACKAGES), RULES)


def test_exception_from_the_arrows_is_not_drawn(tree, tmp_path):
    (tmp_path / "low" / "b.py").write_text("import high.top")
    passed = Rules(RULES.packages, exceptions={"arrows": {"low/b.py -> high/top.py": "a reason"}})
    again = SourceTree(tmp_path, PACKAGES)
    assert "low imports high" in draw(again, RULES)
    assert "low imports high" not in draw(again, passed)


@pytest.mark.parametrize("count", [1, 7, 30])
def test_boxes_lie_inside_and_do_not_overlap(tmp_path, count):
    for k in range(count):
        folder = tmp_path / "high" / f"subpackage_{k}"
        folder.mkdir(parents=True)
        (folder / "a.py").write_text(f"import high.subpackage_{k // 2}.a")
    svg = draw(SourceTree(tmp_path, PACKAGES), RULES)
    placed = boxes(svg)
    assert len(placed) == count
    width, height = (float(read(svg).get(key)) for key in ("width", "height"))
    assert all(x > 0 and x + w < width and y > 0 and y + h < height for x, y, w, h in placed)
    for k, (x, y, w, h) in enumerate(placed):
        assert all(x + w < a or a + c < x or y + h < b or b + d < y for a, b, c, d in placed[:k])


def test_circle_is_drawn_side_by_side(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / "high" / name).mkdir(parents=True)
        (tmp_path / "high" / name / "m.py").write_text(f"import high.{other}.m")
    first, second = boxes(draw(SourceTree(tmp_path, PACKAGES), RULES))
    assert first[1] == second[1]
