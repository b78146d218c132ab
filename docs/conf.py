"""Configuration of Sphinx for the site of these pages; scripts/docs builds it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # this checkout, whatever else is installed

import p2pfl

project = "p2pfl"
author = copyright = "the p2pfl contributors"
version = release = p2pfl.__version__

extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["_build"]

myst_heading_anchors = 5  # headings can be linked to as on a forge
smartquotes_action = "q"  # and no dashes: two hyphens begin an option

html_theme = "furo"
html_title = f"p2pfl {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"
