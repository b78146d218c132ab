"""Ledger of a node on a machine: the private steps of its trainings, on the disk. p2pfl.privacy has the theory of budgets.

A sealed file, `ledger`, holds the steps that the node has made in its life, by rate and noise. Before each training the
node writes the count that includes it, waits until it is on the disk, and draws the secret of this training only then.
Killed at any moment, it has therefore released no more than its ledger says:

- before the file is in its place: there was no training;
- afterwards: the training counts, whether it took place or not. After the next start the node repeats the round, with
  new draws, and this training counts as well.

A node that cannot write the file does not train; it serves and merges until it can.

Steps under noise of other members protect against a number of colluding members (`Privacy.correlated`,
`Privacy.central`). They count with the noise that protects against these, and the ledger keeps the least number of all
steps: what is spent holds against no more, whatever the budget says later.

The noise is planned at the first start, from the rounds of the federation at that time. Later starts keep it: an extension
by more rounds, another epsilon, or data of another size change only how many more steps fit into the budget
(`p2pfl.privacy.continue_plan`). The rates and the noise of all steps are kept, so that the spent epsilon is right whatever
changes. The ledger survives the federations: the data are the same in the next one.

What must never be: a count that begins again. So a ledger is refused, with a remedy, if it is damaged, if it has fewer steps
than the checkpoint or the facts of the last start say, if it is missing although these know of steps, or if peers have
shown that the folder is an older copy. A node whose ledger has steps does not start without a budget, and one that has
trained without a budget does not start with one. Its checkpoint shows that. A node that enters a federation sets its
checkpoint aside, and notes in the ledger before that it has trained without a budget (`note_unprotected`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pfl._util.atomic_files import DamagedFileError, explain, read_sealed, reason, write_sealed
from p2pfl._util.disk import SYSTEM, Disk
from p2pfl._util.event_log import EventLogger
from p2pfl._util.failpoints import failpoint
from p2pfl.budget import TrainingState
from p2pfl.central_noise import centralise
from p2pfl.errors import ConfigurationError
from p2pfl.node.folder.config import CHECKPOINT_MAGIC
from p2pfl.node.log import LOG
from p2pfl.policy import PlannedTraining
from p2pfl.privacy import SECRET, Part, Privacy, PrivacyState, continue_plan, plan_privacy

LEDGER = "ledger"  # name of the file
_MAGIC = b"p2pfl ledger 1\n"
NO_COPY = (
    "restore its newest copy; without one nobody knows what this node has spent, and a private training needs a new node"
    " with other data"
)


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a ledger.

    Attributes:
        parts: the steps so far by rate and noise, the last ones last.
        public: whether the node has started with validation data that were declared public.
        older: whether peers have shown that the folder is an older copy, so that there were more steps.
        unprotected: whether the node has trained without a budget before it entered its federation.
        colluding: the number of colluding members against whom all steps protect; None if any number may collude.
    """

    parts: tuple[Part, ...] = ()
    public: bool = False
    older: bool = False
    unprotected: bool = False
    colluding: Annotated[int, Meta(ge=0)] | None = None

    @property
    def made(self) -> int:
        """Number of all steps."""
        return sum(part.steps for part in self.parts)


def read_ledger(folder: Path, disk: Disk = SYSTEM) -> Steps | None:
    """Return the content of a node's ledger; None if there is none.

    Raises:
        ConfigurationError: it is damaged, cannot be read, or is known to be an older copy.
    """
    path = folder / LEDGER
    try:
        found = msgspec.msgpack.decode(read_sealed(path, _MAGIC, disk), type=Steps)
    except FileNotFoundError:
        return None
    except (DamagedFileError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{path}, which counts the private steps, is damaged; {NO_COPY}") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {explain(error)}") from error
    if found.older:
        raise ConfigurationError(
            f"{path} is an older copy: peers have messages that this node has sent after it was made; {NO_COPY}"
        )
    return found


def note_older_copy(folder: Path, disk: Disk = SYSTEM) -> None:
    """Make a ledger useless, because peers have shown that the folder is an older copy; do nothing if there is none.

    Raises:
        ConfigurationError: there is one, or it cannot be read or written.
    """
    found = read_ledger(folder, disk)
    if found is None:
        return
    try:
        _write(folder / LEDGER, msgspec.structs.replace(found, older=True), disk)
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder / LEDGER}: {explain(error)}") from error
    read_ledger(folder, disk)


class _Trained(msgspec.Struct, frozen=True):
    """Entries of a checkpoint that show what its node has trained; see p2pfl.node.checkpoint.Checkpoint."""

    round: int
    trainings: TrainingState = TrainingState()
    privacy: PrivacyState | None = None


def note_unprotected(folder: Path, checkpoints: Sequence[Path], disk: Disk = SYSTEM) -> None:
    """Note in the ledger, before checkpoints are set aside, that they are of trainings without a budget, if they are.

    A folder whose checkpoints are all damaged, and whose ledger has no steps, counts as one that has trained without.

    Args:
        checkpoints: the files, the newest first.

    Raises:
        ConfigurationError: the ledger is damaged, or cannot be read or written.
    """
    trained: _Trained | None = None
    for path in checkpoints:
        try:
            trained = msgspec.msgpack.decode(read_sealed(path, CHECKPOINT_MAGIC, disk), type=_Trained)
            break
        except (DamagedFileError, msgspec.MsgspecError, OSError):
            continue
    if not checkpoints or (trained and (trained.privacy or not (trained.round or trained.trainings.trainings))):
        return
    found = read_ledger(folder, disk) or Steps()
    if found.unprotected or (found.made and not trained):
        return
    try:
        _write(folder / LEDGER, msgspec.structs.replace(found, unprotected=True), disk)
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder / LEDGER}: {explain(error)}") from error


def check_without_budget(folder: Path, config: str, disk: Disk = SYSTEM) -> None:
    """Raise ConfigurationError if a node without a privacy budget has had one and released models under it.

    Args:
        config: the name of the file of the budget.
    """
    found = read_ledger(folder, disk)
    if found is not None and found.made:
        raise ConfigurationError(
            f"{folder / config} has no privacy budget any more, but this node has trained under one, and its next model"
            " would break the promise; restore the table [privacy]. To give the promise up, move the ledger, the facts and"
            f" the checkpoints in {folder} away"
        )


class PrivacyLedger:
    """Ledger of a running node.

    Args:
        folder: the node's folder.
        found: the content of the ledger; None if there is none.
        planned: what the policy plans to train in all rounds.
        secret: returns secret bytes from the system.
        log: receives an event when the ledger cannot be written, and when it can again.
        threshold: with `Privacy.central`, the least number of members whose sum is opened.

    Attributes:
        plan: the plan of the node's budget.
        steps: number of steps of this plan in the file.
        colluding: of the steps in the file, see `Steps`.
        with_others: whether noise of other members protects the next steps, too.
        problem: why the file could not be written; "" if it was.

    Raises:
        ConfigurationError: no budget can be planned, the node has trained without one, the validation data were public
            before, or the file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        privacy: Privacy,
        planned: PlannedTraining,
        *,
        n_samples: int,
        batch_size: int,
        secret: Callable[[int], bytes],
        found: Steps | None = None,
        log: EventLogger = LOG,
        disk: Disk = SYSTEM,
        threshold: int = 0,
    ) -> None:
        before = found or Steps()
        if before.unprotected:
            raise ConfigurationError(
                "this node has trained without a privacy budget before it entered its federation, and a budget cannot cover"
                " that any more; remove the table [privacy], or, to cover what it releases from then on, move"
                f" {folder / LEDGER} away",
                "privacy",
            )
        if before.public and privacy.validation == "private":
            raise ConfigurationError(
                "this node has started with its validation data declared public, and they cannot become private again;"
                ' restore privacy.validation = "public"',
                "privacy.validation",
            )
        if before.made:
            self.plan = continue_plan(privacy, planned, n_samples, batch_size, before.parts)
        else:
            self.plan = plan_privacy(privacy, planned, n_samples, batch_size)
        if privacy.central:
            self.plan = centralise(self.plan, threshold)
        self.steps = before.made - sum(part.steps for part in self.plan.earlier)
        self.colluding = before.colluding
        self.with_others = privacy.correlated or privacy.central
        self.problem = ""
        self._path, self._secret, self._log, self._disk = folder / LEDGER, secret, log, disk
        self._public = privacy.validation == "public"
        self._lock = Lock()
        if found is None or self._public > before.public:  # what looks at public validation data need not train
            try:
                self._write(self.steps, self.colluding)
            except OSError as error:
                raise ConfigurationError(f"cannot write {self._path}: {explain(error)}") from error

    def record(self, steps: int) -> bool:
        """Write that so many steps of the plan are made, unless the file has more; return whether it is on the disk.

        Several threads may call it.
        """
        with self._lock:
            if steps > self.steps:
                try:
                    now = self.plan.privacy.colluding if self.with_others else None
                    self._write(steps, _least(self.colluding, now))
                except OSError as error:
                    self._report(reason(error))
                    return False
            self._report("")
            self.plan.epsilon(steps)  # takes time, here in a thread; the accountant keeps it for the status
        failpoint("ledger-saved")
        return True

    def draw_key(self) -> bytes:
        """Return the secret of one training, which is kept nowhere."""
        return self._secret(SECRET)

    def _write(self, steps: int, colluding: int | None) -> None:
        parts = [part for part in self.plan.parts(steps) if part.steps]
        _write(self._path, Steps(tuple(parts), self._public, colluding=colluding), self._disk)
        self.steps, self.colluding = steps, colluding

    def _report(self, problem: str) -> None:
        before, self.problem = self.problem, problem
        if problem and not before:
            text = f"cannot write {self._path}: {problem}; this node does not train until it can"
            self._log.warning(text, kind="disk-failed", path=str(self._path))
        elif before and not problem:
            self._log.info("can write the ledger again", kind="disk-works", path=str(self._path))


def _least(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two numbers of colluding members, of which None is any number."""
    return min((each for each in (one, other) if each is not None), default=None)


def _write(path: Path, steps: Steps, disk: Disk) -> None:
    write_sealed(path, _MAGIC, msgspec.msgpack.encode(steps), before=lambda: failpoint("ledger-written"), disk=disk)
