"""Parts of the reference pages that are built from the code.

A block of code with a kind in braces, such as

    ```{keys} p2pfl.node.folder.config:NodeConfig
    Built by ./scripts/docs: every key.
    ```

is replaced when Sphinx reads the page. `KINDS` has a function for each kind, which returns Markdown. It receives the text
after the kind or, if there is none, the lines of the block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from scripts.tools.reference.builtin import builtin
from scripts.tools.reference.commands import commands
from scripts.tools.reference.keys import keys
from scripts.tools.reference.objects import objects
from scripts.tools.reference.scenarios import scenarios

KINDS: Mapping[str, Callable[[str], str]] = {
    "builtin": builtin,
    "commands": commands,
    "keys": keys,
    "objects": objects,
    "scenarios": scenarios,
}

_PART = re.compile(rf"^```{{({'|'.join(KINDS)})}}([^\n]*)\n(.*?)^```$", re.M | re.S)


def render(page: str) -> str:
    """Return the text of a page with its parts from the code.

    Raises:
        ValueError: the code does not document something in a part.
    """
    return _PART.sub(lambda part: KINDS[part[1]](part[2].strip() or part[3]), page)
