"""Table of the shipped scenarios."""

from __future__ import annotations

from importlib import import_module

from p2pfl._util import toml_tables
from scripts.tools.reference.markdown import escape, table


def scenarios(module: str) -> str:
    """Return a table of the shipped scenarios: subject, differences from the paper, needs, size, and forms."""
    scenario = import_module(module)
    rows = []
    for name, path in scenario.shipped_scenarios().items():
        file = scenario.load(name)
        forms = ", ".join(f"`{form}`" for form in toml_tables.read(path).get("forms", {}))
        size = f"{len(file.runs)} runs of {file.runs[0].nodes} nodes, {file.runs[0].rounds} rounds"
        texts = [f"**{escape(file.title)}.**", escape(f"{file.question} {file.description}".strip())]
        texts += [f"Differences: {escape(' '.join(file.differences))}"] if file.differences else []
        texts += [f"*Needs: {escape(file.needs or 'nothing')}; {size}; other forms: {forms}*"]
        rows.append((f"`{name}`", "<br>".join(texts)))
    return table(("scenario", "subject"), rows)
