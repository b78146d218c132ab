"""An audit of the rows of a scenario: all attacks on one row, the results of an unfinished audit on disk, and its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from p2pfl._util.atomic_files import reason, replace_file
from p2pfl._util.printable import to_json
from p2pfl._version import __version__
from p2pfl.errors import ConfigurationError, RunError
from p2pfl.sim.audit.canaries import attack_by_canaries
from p2pfl.sim.audit.inversion import Picture, invert
from p2pfl.sim.audit.mechanism import examine
from p2pfl.sim.audit.membership import FEWEST, attack_membership
from p2pfl.sim.audit.page import page
from p2pfl.sim.audit.releases import Attacked, Release, Watch, observe
from p2pfl.sim.execution.inputs import Content, RunInputs
from p2pfl.sim.execution.resume import Recomputed, Unfinished, UnusableFileError
from p2pfl.sim.results.learning_curves import total_sent
from p2pfl.sim.results.results import result_of, versions
from p2pfl.sim.results.tables import AUDIT, AUDIT_PAGE, AUDITS
from p2pfl.sim.scenario.scenario import Scenario, ScenarioFile, jobs_of, name_errors
from p2pfl.sim.simulation.simulation import Run

_MAGIC = b"p2pfl-sim audit 1\n"
_CHOICE = "attacks.json"  # beside the results of an unfinished audit


SHADOWS = 16


class Attacks(msgspec.Struct, frozen=True):
    """Choice of attacks.

    Attributes:
        shadows: number of runs for the attack on membership; 0 leaves it out.
        canaries: whether to attack the promised epsilon, and to test the mechanism, where nodes have budgets.
    """

    shadows: int = SHADOWS
    canaries: bool = True

    def check(self) -> None:
        """Raise ConfigurationError for an invalid choice."""
        if self.shadows and self.shadows < FEWEST:
            raise ConfigurationError(
                f"--shadows must be {FEWEST} or more, or 0 to leave out the attack on membership, got {self.shadows}"
            )


class Audited(NamedTuple):
    """Result of an audit of one row with one seed.

    Attributes:
        entry: figures, as in audit.json.
        pictures: training images and the closest guesses.
    """

    entry: dict[str, Any]
    pictures: list[Picture]


def audit_job(job: Scenario, graph: Any, attacks: Attacks, progress: Callable[[int], object]) -> Audited:
    """Run a row of a scenario and attack it.

    Args:
        graph: the topology, in place of the row's.
        progress: called with the number of node-rounds done since the last call; in all, those of `runs_of` runs.

    Raises:
        ConfigurationError: the row cannot be audited, or is wrong.
        RunError: a run cannot continue.
    """
    with name_errors(job):
        first: list[Release] = []

        def see(release: Release) -> None:
            if release.round <= 1:
                first.append(release)

        watch = Watch(job.nodes, see)
        run = observe(job, graph, watch)
        progress(job.nodes * job.rounds)
        summary = result_of(run).summary
        inversion, pictures = invert(Attacked(watch.tasks[0], job.seed), watch.tasks, first, job.seed)
        entry: dict[str, Any] = {
            "name": job.name,
            "seed": job.seed,
            "nodes": job.nodes,
            "rounds": job.rounds,
            "topology": summary["topology"],
            "seen_by": _seen_by(run),
            "metric": summary["metric"],
            "test": {"mean": summary["test"]["mean"]},
            "bytes": total_sent(summary["traffic"]),
            **({"privacy": summary["privacy"]} if "privacy" in summary else {}),
            "inversion": inversion,
        }
        if attacks.shadows:
            advance = lambda: progress(job.nodes * job.rounds)  # noqa: E731
            entry["membership"] = attack_membership(job, graph, watch.tasks, attacks.shadows, advance)
        plans = [*run.plan.privacy]
        if attacks.canaries and any(plans):
            entry["canaries"] = attack_by_canaries(job, graph, plans, watch.tasks)
            entry["mechanism"] = _mechanisms(watch, plans, job.seed)
        return Audited(entry, pictures)


def _mechanisms(watch: Watch, plans: Sequence[Any], seed: int) -> dict[str, Any]:
    """Return the test of the mechanism of a node; of the first one whose test contradicts its plan, if any does.

    Nodes with the same number of samples and the same plan train alike, and one of them is tested.
    """
    found: dict[str, Any] = {}
    tested = set()
    for task, plan in zip(watch.tasks, plans, strict=True):
        if plan is None or (key := (task.n_samples, plan.mechanism)) in tested:
            continue
        tested.add(key)
        found = examine(task, plan, seed)
        if found["contradictions"] or len(tested) >= MOST_TESTED:
            break
    return found | {"tested": len(tested)}


def _seen_by(run: Run) -> dict[str, int]:
    """Return the least and the greatest number of nodes that may fetch from a node."""
    around = run.plan.topology
    counts = [len(around.requesters(node, around.neighbours[node])) for node in range(len(run.tasks))]
    return {"least": min(counts), "greatest": max(counts)}


MOST_TESTED = 4  # plans of nodes


def runs_of(attacks: Attacks) -> int:
    """Return the number of runs whose progress is told."""
    return 1 + attacks.shadows


def attacks_of(path: Path) -> Attacks:
    """Return the attacks of the unfinished audit in a folder."""
    try:
        return msgspec.json.decode((path / AUDITS / _CHOICE).read_bytes(), type=Attacks)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{path} holds no audit to resume: {_CHOICE} is missing or damaged") from error


class _Kept(msgspec.Struct, frozen=True):
    """Result on disk: the content of its inputs, the attacks, its entry as JSON, and the pictures."""

    content: Content
    attacks: Attacks
    entry: str
    pictures: list[tuple[tuple[int, int], bytes, bytes, float]]


class Audits(Unfinished):
    """Finished audits of rows of an unfinished command, each in a sealed file."""

    def __init__(
        self,
        path: Path,
        file: ScenarioFile,
        attacks: Attacks,
        inputs: RunInputs | None = None,
        *,
        different_bits: bool = False,
    ) -> None:
        super().__init__(path, file, AUDITS, inputs, different_bits=different_bits)
        self._jobs, self._attacks = jobs_of(file), attacks
        try:
            replace_file(path / AUDITS / _CHOICE, [msgspec.json.encode(attacks)])
        except OSError as error:
            raise ConfigurationError(f"cannot write to {path}: {reason(error)}") from error

    def save(self, number: int, audited: Audited) -> None:
        """Write the result of a job.

        Raises:
            RunError: it cannot be written, or an input has changed since the command began.
        """
        job = self._jobs[number]
        self.inputs.confirm(job)
        pictures = [
            (own.shape, own.astype("<f4").tobytes(), guess.astype("<f4").tobytes(), found)
            for own, guess, found in audited.pictures
        ]
        kept = _Kept(self.inputs.content(job), self._attacks, json.dumps(audited.entry), pictures)
        self.write(number, _MAGIC, msgspec.msgpack.encode(kept))

    def load(self) -> tuple[dict[int, Audited], list[str]]:
        """Return the results on disk by the number of their job, and a line for each that must be computed again."""
        found, again = {}, Recomputed("audited")
        for number, job in enumerate(self._jobs):
            try:
                kept = self.read(number, _MAGIC, lambda content: msgspec.msgpack.decode(content, type=_Kept))
            except UnusableFileError as error:
                again.add(f"{job.name}, seed {job.seed}", str(error))
                continue
            if kept is None:
                continue
            changes = self.changes(job, kept.content) or ("" if kept.attacks == self._attacks else "other attacks")
            if changes:
                again.add(f"{job.name}, seed {job.seed}", changes)
                continue
            found[number] = Audited(json.loads(kept.entry), [_picture(*each) for each in kept.pictures])
        self.done = len(found)
        return found, again.lines()


def _picture(shape: tuple[int, int], own: bytes, guess: bytes, found: float) -> Picture:
    return Picture(np.frombuffer(own, "<f4").reshape(shape), np.frombuffer(guess, "<f4").reshape(shape), found)


def summarise(file: ScenarioFile, results: Sequence[Audited], attacks: Attacks, notes: Sequence[str]) -> dict[str, Any]:
    """Return the contents of audit.json."""
    return {
        "scenario": file.name,
        "version": __version__,
        "versions": versions(),
        "attacks": msgspec.to_builtins(attacks),
        "seeds": list(file.seeds),
        "notes": list(notes),
        "rows": [audited.entry for audited in results],
    }


def write(path: Path, summary: Mapping[str, Any], results: Sequence[Audited]) -> Path:
    """Write the page and audit.json, which comes last, so that a folder with an audit.json is complete; return the page.

    Raises:
        RunError: a file cannot be written.
    """
    try:
        replace_file(path / AUDIT_PAGE, [page(summary, [audited.pictures for audited in results]).encode()])
        replace_file(path / AUDIT, [to_json(summary, indent=1).encode() + b"\n"])
    except OSError as error:
        raise RunError(f"cannot write to {path}: {reason(error)}") from error
    return path / AUDIT_PAGE
