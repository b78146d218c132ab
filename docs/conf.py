"""Configuration of Sphinx for the site of these pages; scripts/docs builds it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # this checkout, whatever else is installed

import p2pfl
from scripts.tools.reference.pages import render

project = "p2pfl"
author = copyright = "the p2pfl contributors"
version = release = p2pfl.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]

default_role = "code"  # docstrings have `code` as in Markdown
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other libraries have no pages here
suppress_warnings = ["ref.python"]  # two classes may share a last name

autodoc_member_order = "bysource"
autodoc_type_aliases = {name: name for name in ("Parameters", "PerSample", "Points", "Preference")}
autodoc_typehints_format = "short"
napoleon_use_ivar = True  # attributes need no entry of their own
python_maximum_signature_line_length = 90

myst_heading_anchors = 5  # headings can be linked to as on a forge
smartquotes_action = "q"  # and no dashes: two hyphens begin an option

html_theme = "furo"
html_title = f"p2pfl {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"


def _mark_code(app, what, name, obj, options, lines):
    """Mark indented blocks of a docstring as code, which reStructuredText does not take for code without two colons."""
    for i in range(len(lines) - 2):
        indents = [len(line) - len(line.lstrip()) for line in (lines[i], lines[i + 2])]
        if lines[i].endswith(":") and not lines[i + 1] and lines[i + 2] and indents[1] > indents[0]:
            lines[i] += ":"


def _restore_colon(app, what, name, obj, options, lines):
    """Undo napoleon's reading of the text before a colon, in the docstring of a property or an alias, as a type."""
    for i, line in enumerate(lines):
        if what in ("attribute", "data", "property") and line.startswith(":type: "):
            lines[0] = f"{line.removeprefix(':type: ')}: {lines[0]}"
            lines[i] = ""


def _hide_signature(app, what, name, obj, options, signature, annotation):
    """Hide the arguments of a protocol, which nobody constructs."""
    return ("", "") if getattr(obj, "_is_protocol", False) else None


def _skip_member(app, what, name, obj, skip, options):
    """Leave out the fields of a named tuple, which its docstring explains."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def _list_members(app, what, name, obj, options, lines):
    """List the members of a task that are not methods, which autodoc does not see in the class."""
    if obj is p2pfl.Task:
        found = {name: value.__doc__ for name, value in vars(obj).items() if type(value).__name__ == "member"}
        lines += ["", "Attributes:"]
        for member, text in found.items():
            lines.append(f"    {member}: {' '.join(text.removeprefix('Return ').split())}")


def setup(app):
    """Insert the parts of the reference that come from the code."""
    app.connect("source-read", lambda app, name, source: source.__setitem__(0, render(source[0])))
    app.connect("autodoc-process-docstring", _list_members, priority=300)
    app.connect("autodoc-process-docstring", _mark_code, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", _restore_colon, priority=600)
    app.connect("autodoc-process-signature", _hide_signature)
    app.connect("autodoc-skip-member", _skip_member)
