"""Project for a user's data or torch module: the text of its scenario, and of a task for the module.

The scenario answers what the owner of the data asks first: does learning together help, and does one model fit all nodes?
Its runs differ in the policy only. Each choice in it is a line with its reason above; see p2pfl.data.inspection.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from p2pfl._util.registry import module_files, resolve
from p2pfl._util.toml_tables import options_text
from p2pfl.data.inspection import Proposal
from p2pfl.errors import ConfigurationError, needs_extra
from p2pfl.task import Part, make_task

TEMPLATE = Path(__file__).parent / "new_project" / "own_model.py.text"
ROUNDS = 20
ROUNDS_OF_IMAGES = 8  # and of a user's own module, which is trained node by node
MORE = "use more for a result that counts"
SPREAD = "each run is repeated with these seeds, and the table shows the spread"
MANY_ROWS = 50_000  # with more, one seed is run
FEW_ROWS = 1000  # of a node, on average
SIDES = (32, 28, 64, 96, 128, 224)  # of images, that a module is tried with


class UserModule(NamedTuple):
    """A user's torch module, and how it takes the samples.

    Attributes:
        source: its name, "package.module:Name".
        reading: the options with which the built-in task reads the data.
        outputs: number of outputs of the module.
    """

    source: str
    shape: tuple[int, ...]
    reading: dict[str, Any]
    outputs: int
    folder: Path

    @property
    def line(self) -> str:
        """The line that the console prints for the module."""
        sent = " x ".join(map(str, self.shape))
        return f"model: {self.source}, because it takes samples of {sent} values and has {self.outputs} outputs"

    def task_text(self, proposal: Proposal) -> str:
        """Return the text of task.py: the built-in task reads the rows, and the user's module learns from them."""
        module, _, name = self.source.partition(":")
        return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
            module=module,
            name=name,
            kind=proposal.task["name"],
            shape=repr(self.shape),
            reading=_python(self.reading),
            metrics=repr(tuple(proposal.task.get("metrics", ()))),
        )

    def copy(self, folder: Path) -> list[str]:
        """Copy the module, and those that it imports from its folder, to the project's folder; return their names."""
        root = self.source.partition(":")[0].partition(".")[0]
        files = module_files(self.folder, [root])
        for path in files:
            if path.is_dir():
                shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, folder / path.name)
        return [path.name for path in files]


def look_at_module(source: str, proposal: Proposal) -> UserModule:
    """Import a user's torch module from the current folder, and try it with samples of zeros.

    Raises:
        ConfigurationError: it cannot be imported or made, or fits no shape of the samples; the text says what it answered.
    """
    with needs_extra("a torch module", "torch"):
        import torch
        from torch import nn

    before = list(sys.path)
    sys.path.append(str(Path.cwd()))
    try:
        make = resolve("model", source, {}, "")
    finally:
        sys.path[:] = before
    try:
        module = make()
    except Exception as error:
        raise ConfigurationError(
            f"{source}() fails: {error}; name a class or a function that makes the module without arguments"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigurationError(f"{source}() is a {type(module).__name__}, not a torch.nn.Module")
    module.eval()
    wanted, problems = proposal.classes or 1, list[str]()
    for shape, changes in _shapes(proposal):
        try:
            with torch.no_grad():
                found = module(torch.zeros(2, *shape))
        except Exception as error:
            problems.append(f"{list(shape)}: {str(error).splitlines()[0]}")
            continue
        if getattr(found, "shape", None) == (2, wanted):
            reading = {key: value for key, value in proposal.task.items() if key not in ("name", "model", "lr", "metrics")}
            return UserModule(source, shape, reading | changes, wanted, Path.cwd())
        problems.append(f"{list(shape)}: it returns {list(getattr(found, 'shape', ()))}, and not [2, {wanted}]")
    raise ConfigurationError(
        f"{source} does not fit {proposal.data}, which has {wanted} {'classes' if proposal.classes else 'number'} to"
        f" predict; it was tried with samples of {'; '.join(problems[:3])}"
    )


def _shapes(proposal: Proposal) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yield shapes of a sample to try, and the options that read the data so."""
    if "size" in proposal.task:
        for side in SIDES:
            for channels in (proposal.task["channels"], 4 - proposal.task["channels"]):
                yield (channels, side, side), {"size": side, "channels": channels}
        return
    task = make_task(proposal.task["name"], _own_options(proposal), Part(0, 1), 0)
    if proposal.shape[1:]:
        yield proposal.shape, {}
        if len(proposal.shape) == 2:
            yield (1, *proposal.shape), {}
    yield tuple(task.data["train"][0].shape[1:]), {}


def _own_options(proposal: Proposal) -> dict[str, Any]:
    return {key: value for key, value in proposal.task.items() if key not in ("name", "model")} | {
        "data": str(proposal.data)
    }


def check(proposal: Proposal, module: UserModule | None) -> None:
    """Read the data as the first node will, so that what is wrong in it is said before anything is written.

    Raises:
        ConfigurationError: the data cannot be read; the text names the rows.
    """
    reading = {} if module is None else module.reading
    options = _own_options(proposal) | reading | {"partition": proposal.partition}
    make_task(proposal.task["name"], options, Part(0, proposal.nodes), 0)


def files_of(folder: Path, proposal: Proposal, module: UserModule | None) -> dict[str, str]:
    """Return the texts of the project's files, by name.

    Args:
        folder: the project's folder.
        module: the user's model; None uses that of the task.
    """
    texts = {"scenario.toml": _scenario(folder, proposal, module)}
    return texts if module is None else texts | {"task.py": module.task_text(proposal)}


def _scenario(folder: Path, proposal: Proposal, module: UserModule | None) -> str:
    why = {each.subject: f"{each.choice}: {each.why}" for each in proposal.reasons}
    slow = module is not None or "model" in proposal.task
    head: dict[str, Any] = {
        "name": folder.name,
        "description": f"Local learning, {proposal.policy} and one model for all nodes, on {proposal.data.name}.",
        "question": "Does learning together help, and does one model fit all nodes?",
        "nodes": proposal.nodes,
        "rounds": ROUNDS_OF_IMAGES if slow else ROUNDS,
        "seeds": [0] if slow or proposal.rows >= MANY_ROWS else [0, 1, 2],
        "against": "alone",
    }
    comments = {
        "nodes": why["division"],
        "rounds": f"so few that a first result takes minutes: {MORE}" if slow else "",
        "seeds": f"one seed shows no spread: {MORE}" if len(head["seeds"]) == 1 else SPREAD,
        "against": "the table compares all runs with this one",
    }
    better = "above" if proposal.classes else "below"  # of accuracy, and of the mean squared error
    each = proposal.rows / proposal.nodes
    batch_size = next((size for size in (16, 32, 64, 128) if each < 64 * size), 256)
    task = proposal.task if module is None else {"name": "task:make_task"}
    given = {**task, "data": str(proposal.data.resolve()), "partition": proposal.partition, "batch_size": batch_size}
    if each < FEW_ROWS and module is None:
        given |= {"validation": 0.2, "test": 0.2}
    reasons = {**proposal.comments, "batch_size": "samples in a step of the optimiser; more if a node has many rows"}
    reasons["validation"] = "a node has few rows: with more of them held out, the figures vary less from seed to seed"
    if module is not None:
        reasons["name"] = "task.py has your model, and how the data is read"
    return "\n".join(
        [
            f"# Scenario of {folder.name}, written by p2pfl-sim new after a look at {proposal.data.name}:",
            f"# {proposal.seen}.",
            "# The line above a key gives the reason for its value; change what does not fit, and run it:",
            f"# p2pfl-sim run {folder}/scenario.toml --out {folder}/results",
            "",
            *options_text(head, {key: text for key, text in comments.items() if text}),
            "",
            "[task]",
            *options_text(given, reasons),
            "",
            "# does learning together help? the sentences below the table answer it with its margin and spread",
            "[[answer]]",
            f'run = "{proposal.policy}"',
            'against = "alone"',
            f'yes = "{better}"',
            "",
            "# does one model fit all nodes?",
            "[[answer]]",
            'run = "fedavg"',
            f'against = ["alone", "{proposal.policy}"]',
            f'yes = "{better}"',
            "",
            "# each node learns alone: the others must beat this",
            "[[run]]",
            'name = "alone"',
            'policy = { name = "local" }',
            "",
            f"# {why['policy']}",
            "[[run]]",
            f'name = "{proposal.policy}"',
            f'policy = {{ name = "{proposal.policy}" }}',
            "",
            "# one model for all nodes: the mean of all models",
            "[[run]]",
            'name = "fedavg"',
            'policy = { name = "fedavg" }',
            "",
        ]
    )


def _python(reading: Mapping[str, Any]) -> str:
    """Return the options as the text of a Python dictionary, one in a line."""
    rows: Sequence[str] = [f"    {key!r}: {value!r}," for key, value in reading.items()]
    return "\n".join(["{", *(row.replace("'", '"') if '"' not in row else row for row in rows), "}"])
