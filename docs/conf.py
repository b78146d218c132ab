"""How Sphinx makes the site of these pages; scripts/docs calls it."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # the pages are of this checkout, whatever else is installed

import p2pfl  # noqa: E402

project = "p2pfl"
author = copyright = "the p2pfl contributors"
version = release = p2pfl.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "reference",  # reference.py, beside this file
]
exclude_patterns = ["_build"]

myst_heading_anchors = 3  # headings can be linked to as on a forge
smartquotes_action = "q"  # and no dashes: two hyphens begin an option
default_role = "literal"  # what docstrings have between single backticks

python_maximum_signature_line_length = 90
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {
    "Extras": "p2pfl.policy.Extras",
    "FineTuning": "p2pfl.policies.fedavg.FineTuning",
    "Parameters": "p2pfl.parameters.Parameters",
    "PerSample": "p2pfl.learning.losses.PerSample",
    "Robust": "p2pfl.policy.Robust",
    "Schedule": "p2pfl.policies.schedule.Schedule",
    "Split": "p2pfl.queries.Split",
    "Stage": "p2pfl.policy.Stage",
    "Tensor": "torch.Tensor",
}
napoleon_numpy_docstring = False

# Other projects' names: their pages are not asked for, so that a site is built without a network.
_OTHERS = r"(asyncio|collections|cryptography|networkx|nn|numpy|pathlib|torch)\..*"
nitpick_ignore_regex = [
    ("py:.*", _OTHERS),
    ("py:class", r"p2pfl\.node\.trainer\.T|p2pfl\.queries\.R|p2pfl\.learner\.Answer"),
]

html_theme = "furo"
html_title = f"p2pfl {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"
