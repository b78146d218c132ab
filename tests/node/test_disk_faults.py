"""Faults on a node's disk: each file of its folder, damaged in each way, at each moment.

Each case starts the real command `p2pfl-node run` in this process on a copy of a folder, and then once more without a
further fault. In both runs the node must do one of these:

    unaffected   it goes on, and all its state is right
    noted        it goes on, and a line of its log names the file
    refused      it ends with one line that names the file and a remedy after a semicolon
    limit        it goes on with an older or lost state that nothing in the folder can show; see LIMITS

Everything else is a violation: a traceback, a hang, another exit code, more than one line, or a state that is wrong
without a word. The state is what a node must never lose in silence: its keys, the number of its starts, the membership
log, the proof of a fork of it, the checkpoint, its vote, its budget, the notes of its tokens, and the ledger of its privacy
budget. A node with such a budget, in a ground of its own, must never make more private steps than the ledger on its disk
has. A newcomer that has begun with a checkpoint of the log, and has a part of the log, is in another ground.

`python -m tests.node.test_disk_faults` runs the whole matrix, and prints the cases and the number of each outcome.
"""

import argparse
import contextlib
import errno
import io
import itertools
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from p2pfl._util.atomic_files import read_sealed
from p2pfl._util.disk import SYSTEM, SystemDisk
from p2pfl.errors import P2pflError
from p2pfl.node.checkpoint import FileStore
from p2pfl.node.cli.main import main
from p2pfl.node.coordination.election_runner import FileVotes
from p2pfl.node.federation import invitations, membership_changes, membership_file
from p2pfl.node.folder import config, incarnation
from p2pfl.node.folder.facts import update_facts
from p2pfl.node.log import LOG
from p2pfl.node.privacy_ledger import PrivacyLedger, read_ledger
from p2pfl.protocols.election import Ballot, Term
from p2pfl.protocols.errors import IdentityError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import checkpoint
from p2pfl.protocols.membership.log import Membership
from tests.support.logs import log_to
from tests.support.processes import Processes

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals, links and pipes")

SECRET = bytes(16)
NOTE = f"invitations/{invitations.sha256(b'p2pfl invitation 1' + bytes(1) + SECRET).hexdigest()}"
STATE = (
    "node.toml", "key.pem", "federation.toml", "membership", "membership.copy", "admission.pem", "admission.pem.old",
    "incarnation", "incarnation.1", "checkpoint", "checkpoint.1", "checkpoint.2", "published", "vote", "facts",
    "status.json", "lock", "membership.lock", NOTE, "fork", "revocation", "membership.begin",
)  # fmt: skip
DAMAGES = (
    "emptied", "halved", "zeroed", "noise", "bit", "other", "old", "appended", "folder", "unreadable", "read-only",
    "removed", "link", "dangling", "loop", "pipe",
)  # fmt: skip
PATIENCE = 10  # seconds of real time after which a run hangs
LIMITS = {
    ((NOTE, "old"),): ["used"],  # a token that was not used yet looks the same
    ((NOTE, "removed"),): ["used"],  # a token that was never made looks the same; newcomers are refused
    (("fork", "old"),): ["fork"],  # a log without a fork; peers show the proof again
    (("fork", "removed"),): ["fork"],
    (("fork", "dangling"),): ["fork"],
    (("membership.begin", "old"), ("facts", "old")): ["membership"],  # the part of the log that is there is as old
    (("membership.begin", "removed"), ("facts", "removed")): ["membership"],
    (("vote", "old"), ("facts", "old")): ["term"],
    (("vote", "removed"), ("facts", "removed")): ["term"],
    (("vote", "removed"), ("facts", "old")): ["term"],
    (("vote", "old"), ("facts", "removed")): ["term"],
}  # damages, and the parts of the state that nothing in the folder can show to be older; see docs/reference/files.md
TOML = """
rounds = 2
deadline = {deadline}
members = {members}
task = {{name = "concept-shift", samples = 4, test = 4}}
policy = {{name = "{policy}"}}
"""
PRIVATE = """
patience = 0
[privacy]
epsilon = 8
validation = "public"
"""
CORRELATED = """robust = "none"
patience = 0
[privacy]
epsilon = 8
correlated = true
colluding = 0
"""
LIMITED = "[budget]\nmodels = 3\nbytes = 50000\n"
DSGD = 'dsgd", steps = 1, weights = "metropolis'  # as the name of a policy, with its options


OUTCOMES = ("unaffected", "noted", "limit", "refused", "violation")  # the worst of the two runs counts
QUIET = log_to([])


class HangError(BaseException):
    """A run takes longer than PATIENCE."""


class KilledError(BaseException):
    """The process has ended at an operation of its disk."""


# The folders


def snapshot(folder):
    """Return the files of a folder, by path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def restore(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)


class Ground:
    """Folders of a federation of alice and bob: alice has the admission key, has run three times, and has rounds to do.

    Attributes:
        files, old: the files of alice, and those of an earlier time.
        other: those of bob.
        expected: the state of alice.
    """

    def __init__(self, root, deadline=0.05, members=1, policy="coordinated-fedavg", private=""):
        self.root = root
        toml = TOML.format(deadline=deadline, members=members, policy=policy) + private
        nodes = Processes(root, ("alice", "bob"), toml)
        self.alice, self.bob = nodes.folders["alice"], nodes.folders["bob"]
        text = (self.alice / "node.toml").read_text()
        version = membership_file.member_of(self.alice).membership_version
        self.others = snapshot(self.bob)
        with self.bob_running() if members > 1 else contextlib.nullcontext():
            for _ in range(2):
                self._run(self.alice)
        (self.alice / "invitations").mkdir(mode=0o700)
        note = invitations.Note("carol", "participant", 4e9, 4e9)
        invitations.write_note(self.alice, SECRET, note)
        FileVotes(self.alice / "vote").save(Ballot(Term(version, 1), "bob"))
        self.old = snapshot(self.alice)

        text = text.replace("epsilon = 8", "epsilon = 60")  # the noise is that of two rounds, and there will be more
        (self.alice / "node.toml").write_text(f"{text}\n" + ("" if private == CORRELATED else LIMITED))
        membership_changes.rotate(self.alice, root / "second.pem")
        membership_changes.extend(self.alice, 4)
        with self.bob_running() if members > 1 else contextlib.nullcontext():
            self._run(self.alice)
        membership_changes.extend(self.alice, 6)
        self._fork()
        invitations.write_note(self.alice, SECRET, invitations.replace(note, used_by=bytes(32)))
        incarnation.note_published(self.alice / "published", 4)
        version = membership_file.member_of(self.alice).membership_version
        FileVotes(self.alice / "vote").save(Ballot(Term(version, 7), "alice"))
        self.files = snapshot(self.alice)
        self.expected = state_of(self.alice)

    def _fork(self):
        """Let alice keep the proof that the admission key has signed two entries with one number."""
        admission, log = Identity.load(self.alice / "admission.pem"), membership_file.member_of(self.alice)
        logs = log, log.copy()
        for rounds, each in enumerate(logs, 50):
            each.append_extension(admission, rounds)
        one, two = (each.after(log.membership_version - 1, 4096)[1:] for each in logs)
        membership_file.MembershipFile(self.alice).save_fork((one, two))

    def _run(self, folder):
        run = start(folder)
        assert run.code == 0, run

    @contextlib.contextmanager
    def bob_running(self):
        """Run bob in another thread."""
        import asyncio

        from p2pfl.node.federation import loading
        from p2pfl.node.runtime.run import run_loaded

        restore(self.bob, self.others | {"membership": (self.alice / "membership").read_bytes()})
        loop, tasks = asyncio.new_event_loop(), []

        async def work():
            tasks.append(asyncio.current_task())
            with contextlib.suppress(asyncio.CancelledError):
                await run_loaded(loading.load(self.bob), LOG.bind(node="bob"), until_done=False)

        thread = threading.Thread(target=lambda: loop.run_until_complete(work()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            thread.join(PATIENCE)
            loop.close()


class NewcomerGround(Ground):
    """The folder of alice as that of a newcomer: she has begun with a checkpoint, and has the first entries of the log."""

    def __init__(self, root):
        self.root = root
        nodes = Processes(root, ("alice", "bob"), TOML.format(deadline=0.05, members=1, policy="dsgd"))
        self.alice, self.bob = nodes.folders["alice"], nodes.folders["bob"]
        self.others = snapshot(self.bob)
        self._log = membership_file.member_of(self.alice)
        self._admission = Identity.load(self.alice / "admission.pem")
        for name in ("admission.pem", "membership", "membership.copy"):
            (self.alice / name).unlink()
        self._begin(4, 300)
        for _ in range(2):
            self._run(self.alice)
        self.old = snapshot(self.alice)
        self._begin(6, 900)
        update_facts(self.alice, entries=self._log.membership_version)
        self.files = snapshot(self.alice)
        self.expected = state_of(self.alice)
        assert self.expected.membership > membership_file.member_of(self.alice).stored > 0

    def _begin(self, rounds, size):
        """Replace the checkpoint by one of more rounds, and let alice have the first bytes of the log."""
        for k in range(4):
            key = Identity.from_seed(bytes([rounds, k]) * 16).public
            self._log.append(self._admission, "add", f"other-{rounds}-{k}", key)
        self._log.append_extension(self._admission, rounds)
        begun = checkpoint.make(self._log, self._admission, ["alice", "bob"])
        membership = Membership(self._log.file)
        membership.begin(checkpoint.read(begun, self._log.file))
        membership.extend(self._log.after(0, size))
        membership_file.write_federation(self.alice, membership)


@dataclass
class State:
    """State that a node must never lose in silence; None for a file that cannot be read."""

    key: bytes | None = None
    admission: bytes | None = None
    starts: int = 0
    membership: int = 0
    round: int = 0
    term: tuple = (0, 0)
    budget: tuple = ()
    used: bool = False
    fork: bool = False
    steps: int = 0


def state_of(folder):
    state = State()
    for name, path in (("key", "key.pem"), ("admission", "admission.pem")):
        with contextlib.suppress(IdentityError, OSError):
            if (folder / path).is_file():
                setattr(state, name, Identity.load(folder / path).public)
    quiet = (P2pflError, OSError, ValueError)
    with contextlib.suppress(*quiet):
        if (folder / "incarnation").is_file():
            state.starts = int(read_sealed(folder / "incarnation", incarnation.MAGIC))
    with contextlib.suppress(*quiet):
        found = membership_file.load_federation(folder)
        state.membership = found.membership_version if found else 0
        state.fork = found is not None and found.fork is not None
    with contextlib.suppress(*quiet):
        found = FileStore(folder / "checkpoint", QUIET).load()
        state.round = found.round if found else 0
    with contextlib.suppress(*quiet):
        if (folder / "vote").is_file():
            state.term = FileVotes(folder / "vote", QUIET).load(0).term
    with contextlib.suppress(*quiet):
        budget = config.load(folder).budget
        state.budget = (budget.models, budget.held, budget.bytes)
    with contextlib.suppress(*quiet):
        state.used = bool(invitations.read_note(folder, SECRET).used_by)
    with contextlib.suppress(*quiet):
        state.steps = found.made if (found := read_ledger(folder)) else 0
    return state


WHERE = {
    "key": ("key.pem",),
    "admission": ("admission.pem",),
    "starts": ("incarnation", "facts"),
    "membership": ("membership", "federation.toml", "fork", "revocation"),  # damaged proofs stop the start, too
    "fork": ("fork", "revocation", "membership", "federation.toml"),
    "round": ("checkpoint", "status.json"),
    "term": ("vote", "facts"),
    "budget": ("node.toml",),
    "used": ("invitations",),
    "steps": ("ledger", "facts", "checkpoint"),
}  # the files that hold each part of the state


# Damage


def damage(folder, name, how, ground, draw):  # noqa: C901  one case for each kind of damage
    """Damage one file of a folder."""
    path = folder / name
    content = path.read_bytes() if path.is_file() else b"content"
    path.parent.mkdir(mode=0o700, exist_ok=True)

    def write(data):
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)

    match how:
        case "emptied":
            write(b"")
        case "halved":
            write(content[: len(content) // 2])
        case "zeroed":
            write(bytes(len(content)))
        case "noise":
            write(draw.randbytes(max(64, len(content))))
        case "bit":
            changed = bytearray(content or b"\0")
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            write(bytes(changed))
        case "other":
            write(ground.others.get(name, ground.others["key.pem"]))
        case "old":
            write(ground.old[name]) if name in ground.old else path.unlink(missing_ok=True)
        case "appended":
            write(content + b"\n\xff\0junk")
        case "folder":
            path.unlink(missing_ok=True)
            path.mkdir()
        case "unreadable":
            disk.unreadable.add(path)
        case "read-only":
            disk.unwritable.add(path)
        case "removed":
            path.unlink(missing_ok=True)
        case "link":
            elsewhere = ground.root / "elsewhere" / name
            elsewhere.parent.mkdir(parents=True, exist_ok=True)
            elsewhere.write_bytes(content)
            elsewhere.chmod(0o600)
            path.unlink(missing_ok=True)
            path.symlink_to(elsewhere)
        case "dangling":
            path.unlink(missing_ok=True)
            path.symlink_to(ground.root / "nowhere")
        case "loop":
            path.unlink(missing_ok=True)
            path.symlink_to(path)
        case "pipe":
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
        case _:
            raise AssertionError(how)


class FaultyDisk(SystemDisk):
    """The disk of the operating system with faults.

    Attributes:
        unreadable, unwritable: paths that fail.
        broken: the error of every write; 0 for none.
        kill_at: number of the change of a file at which the process ends; 0 for none.
        fail_at: number of the change of a file that fails once with an I/O error; 0 for none.
    """

    def __init__(self):
        self.reset()

    def reset(self):
        self.unreadable, self.unwritable, self.broken, self.kill_at, self.changes = set(), set(), 0, 0, 0
        self.fail_at = 0

    def _change(self, *paths, half=None):
        if self.broken:
            raise OSError(self.broken, os.strerror(self.broken), str(paths[0]))
        bare = {path.with_name(path.name.removesuffix(".new")) for path in paths}
        if bare & self.unwritable:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(paths[0]))
        self.changes += 1
        if self.changes == self.fail_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(paths[0]))
        if self.kill_at and self.changes >= self.kill_at:
            if half and self.changes == self.kill_at:
                half()
            raise KilledError

    def read(self, path, most=-1):
        if path in self.unreadable:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return super().read(path, most)

    def create(self, path, parts, durable, mode):
        content = b"".join(parts)
        self._change(path, half=lambda: super(FaultyDisk, self).create(path, [content[: len(content) // 2]], False, mode))
        super().create(path, [content], durable, mode)

    def rename(self, source, target):
        self._change(target)
        super().rename(source, target)

    def link(self, source, target):
        self._change(target)
        super().link(source, target)

    def remove(self, path):
        self._change(path)
        super().remove(path)


disk = FaultyDisk()


@contextlib.contextmanager
def faulty():
    """Put the disk with faults in the place of that of the operating system."""
    names = ("read", "create", "rename", "link", "remove")
    for name in names:
        setattr(SYSTEM, name, getattr(disk, name))
    try:
        yield
    finally:
        disk.reset()
        for name in names:
            delattr(SYSTEM, name)


# A run


@dataclass
class Run:
    """Output of a run: its exit code (None if it was killed), its lines of standard error, its events, and its rounds."""

    code: int | None = None
    errors: list = field(default_factory=list)
    events: list = field(default_factory=list)
    rounds: list = field(default_factory=list)
    fault: str = ""

    @property
    def words(self):
        return "\n".join([*self.errors, *(text for level, text in self.events)])


def start(folder, at_round=0, then=lambda: None):
    """Run the node of a folder, and call `then` after a round."""
    run, out, err = Run(), io.StringIO(), io.StringIO()
    handler = logging.Handler()

    def emit(record):
        fields = getattr(record, "fields", {})
        if fields.get("node") == "bob":
            return
        run.events.append((record.levelname, record.getMessage()))
        if record.exc_info:
            run.fault = "an exception in the log"
        if fields.get("kind") == "round":
            run.rounds.append(fields["round"])
            if len(run.rounds) == at_round:
                then()

    def hang(*_):
        raise HangError

    handler.emit = emit
    before = signal.signal(signal.SIGALRM, hang)
    LOG.logger.addHandler(handler)
    signal.alarm(PATIENCE)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run.code = main(["run", str(folder), "--until-done"])
    except KilledError:
        run.code = None
    except HangError:
        run.fault = "hangs"
    except BaseException as error:
        run.fault = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        LOG.logger.removeHandler(handler)
    run.errors = err.getvalue().splitlines()
    if "Traceback" in out.getvalue() + err.getvalue():
        run.fault = "a traceback"
    return run


# Cases


@dataclass(frozen=True)
class Case:
    """A fault.

    Attributes:
        moment: "stopped", "running", "killed at N", "failing at N", or the error of the disk: "full", "read-only", from the
            start or from round 1 of the run on.
        damages: pairs of a file and the kind of its damage.
        peer: whether bob runs, and has seen the newest state.
    """

    moment: str
    damages: tuple = ()
    peer: bool = False

    def __str__(self):
        said = " and ".join(f"{name[:20]} {how}" for name, how in self.damages)
        return ", ".join(filter(None, [self.moment, said, "with a peer" if self.peer else ""]))


OLDER = "it was restored from an older copy"  # of the whole folder, as peers have told the node


def limited(case):
    """Return the known limits that a case has."""
    return [damages for damages in LIMITS if set(damages) <= set(case.damages)]


def judge(case, run, after, expected):
    """Return the outcome of a run, with what is wrong after a colon."""
    names = [name for name, _ in case.damages]
    names += ["membership"] * ("membership.begin" in names)  # without it the log is shorter, and is named
    if case.moment.startswith(("full", "read-only", "killed", "failing")):
        names += (*STATE, "ledger")  # the disk itself is at fault
    if run.fault:
        return f"violation: {run.fault}"
    if run.code in (1, 2):
        lines = [line for line in run.errors if not line.startswith("warning: ")] or [
            text for level, text in run.events if level in ("ERROR", "WARNING")
        ][-1:]
        if len(lines) != 1:
            return f"violation: {len(lines)} lines: {lines}"
        if not any(name.partition("/")[0] in lines[0] for name in names):
            return f"violation: no file in: {lines[0]}"
        return "refused" if "; " in lines[0] or "must be" in lines[0] else f"violation: no remedy in: {lines[0]}"
    if run.code not in (0, None):
        return f"violation: exit code {run.code}"
    warned = "\n".join(text for level, text in run.events if level != "INFO" or "differ" in text) + "\n".join(run.errors)
    wrong = []
    for part, files in WHERE.items():
        was, now = getattr(expected, part), getattr(after, part)
        if part == "starts" and run.code == 0:
            right = now > was
        elif part in ("starts", "membership", "round", "term", "steps"):
            right = now >= was
        else:
            right = now == was
        later = case.moment == "running" and any(name.startswith(files) for name, _ in case.damages)  # at the next start
        if not right and not later and not any(name in warned for name in (*files, OLDER)):
            wrong.append((part, was, now))
    noted = OLDER in warned or any(name.partition("/")[0] in warned for name in names)
    if wrong:
        known = all(any(part in LIMITS.get(each, ()) for each in limited(case)) for part, _, _ in wrong)
        return "limit" if known else f"violation: silent: {wrong}"
    return "noted" if noted else "unaffected"


def play(case, ground):
    """Return the outcomes of the run with the fault, and of the next one, with these runs."""
    draw = random.Random(str(case))
    restore(ground.alice, ground.files)

    def harm():
        for name, how in case.damages:
            damage(ground.alice, name, how, ground, draw)

    def break_disk():
        disk.broken = errno.ENOSPC if moment == "full" else errno.EROFS

    moment, _, where = case.moment.partition(" ")
    at_round, then = 0, break_disk
    expected = ground.expected
    with faulty(), ground.bob_running() if case.peer else contextlib.nullcontext():
        if case.peer:
            assert start(ground.alice).code == 0
            expected = state_of_quietly(ground)
        if moment == "running":
            at_round, then = 1, harm
        else:
            harm()
        if moment == "killed":
            disk.kill_at = int(where.removeprefix("at "))
        elif moment == "failing":
            disk.fail_at = int(where.removeprefix("at "))
        elif where == "from the start":
            break_disk()
        elif where == "from round 1":
            at_round = 1
        runs = [start(ground.alice, at_round, then)]
        first = judge(case, runs[0], state_of_quietly(ground), expected)
        disk.reset()
        runs.append(start(ground.alice))
        second = judge(replace(case, moment="stopped"), runs[1], state_of_quietly(ground), expected)
        if second.startswith("violation: silent") and first in ("noted", "refused"):
            second = "noted"  # in the run before
    return first, second, runs


def state_of_quietly(ground):
    """Return the state of alice, without an effect on her folder."""
    copy = ground.root / "looked"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ground.alice, copy, symlinks=True, ignore=_no_pipes)
    return state_of(copy)


def _no_pipes(folder, names):
    return [name for name in names if not (Path(folder) / name).is_file() and not (Path(folder) / name).is_dir()]


def singles(moment):
    for name, how in itertools.product(STATE, DAMAGES):
        yield Case(moment, ((name, how),))


def pairs():
    core = ("key.pem", "federation.toml", "membership", "admission.pem", "incarnation", "checkpoint", "vote", "node.toml")
    for (a, b), how in itertools.product(itertools.combinations(core, 2), ("emptied", "old", "removed")):
        yield Case("stopped", ((a, how), (b, how)))
    twins = (("incarnation", "incarnation.1"), ("checkpoint", "checkpoint.1"), ("membership", "membership.copy"),
             ("vote", "facts"), ("incarnation", "facts"), ("checkpoint.1", "checkpoint.2"),
             ("key.pem", "admission.pem"))  # fmt: skip
    for twin, (a, b) in itertools.product(twins, itertools.product(("noise", "old", "removed", "folder"), repeat=2)):
        yield Case("stopped", ((twin[0], a), (twin[1], b)))


def disks():
    for kind, where in itertools.product(("full", "read-only"), ("from the start", "from round 1")):
        yield Case(f"{kind} {where}")
        for name, how in itertools.product(("incarnation", "checkpoint", "membership", "vote"), ("emptied", "removed")):
            yield Case(f"{kind} {where}", ((name, how),))


def kills():
    for number in range(1, 60):
        yield Case(f"killed at {number}")


def damages_and_writes(files, most):
    for moment, name, how in itertools.product(("stopped", "running"), files, DAMAGES):
        yield Case(moment, ((name, how),))
    for (a, b), how in itertools.product(itertools.combinations(files, 2), ("emptied", "old", "removed")):
        yield Case("stopped", ((a, how), (b, how)))
    for kind, where in itertools.product(("full", "read-only"), ("from the start", "from round 1")):
        yield Case(f"{kind} {where}")
    for kind, number in itertools.product(("killed", "failing"), range(1, most)):
        yield Case(f"{kind} at {number}")


def private():
    """Return the cases of a node with a privacy budget: damages of its count of steps, and each write that fails."""
    return damages_and_writes(("ledger", "facts", "checkpoint"), 60)


def newcomer():
    """Return the cases of a newcomer that does not have the whole log yet."""
    return damages_and_writes(("membership.begin", "membership", "membership.copy", "federation.toml", "facts"), 40)


def peers():
    whole = tuple((name, "old") for name in STATE if name not in ("lock", "membership.lock"))
    yield Case("stopped", whole, peer=True)
    for names in (
        ("incarnation",), ("incarnation", "facts"), ("checkpoint",), ("checkpoint", "checkpoint.1", "checkpoint.2"),
        ("checkpoint", "checkpoint.1", "checkpoint.2", "status.json"), ("membership",), ("membership", "membership.copy"),
        ("vote",), ("vote", "facts"), ("published",), ("node.toml",), ("admission.pem",), ("status.json",),
    ):  # fmt: skip
        for how in ("old", "removed"):
            yield Case("stopped", tuple((name, how) for name in names), peer=True)


def matrix():
    """Return all cases without a peer."""
    return [*singles("stopped"), *singles("running"), *pairs(), *disks(), *kills()]


# A spread of the cases in the test suite


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("disk"))


def faults(*damages, moment="stopped"):
    return Case(moment, damages)


SPREAD = [
    (faults(("node.toml", "emptied")), "refused", "name is missing; correct it, or restore it from a backup"),
    (faults(("node.toml", "old")), "noted", "budget.models is 0 instead of 3, budget.bytes is 0 instead of 50000"),
    (faults(("key.pem", "removed")), "refused", "restore it from a backup, or create a new node with p2pfl-node init"),
    (faults(("key.pem", "pipe")), "refused", "Not a regular file"),
    (faults(("key.pem", "noise"), moment="running"), "unaffected", ""),
    (faults(("lock", "pipe")), "refused", "move it away"),
    (faults(("federation.toml", "bit")), "refused", "copy it from the folder of another member"),
    (faults(("federation.toml", "removed")), "refused", "is missing, but membership is there"),
    (
        faults(("federation.toml", "removed"), ("membership", "removed"), ("membership.copy", "removed")),
        "refused",
        "this node was a member of test at its last start",
    ),
    (faults(("admission.pem", "halved")), "noted", "restore it from the backup that `federation create`"),
    (faults(("admission.pem", "old")), "noted", "is no longer the admission key"),
    (faults(("admission.pem", "removed")), "noted", "was here at the last start, and is missing"),
    (faults(("membership", "old")), "noted", "is older than its copy; continuing with the 5 entries"),
    (faults(("membership", "removed"), ("membership.copy", "noise")), "refused", "is missing; copy it from"),
    (faults(("incarnation", "old")), "noted", "is older than incarnation.1 or the last start"),
    (faults(("incarnation", "noise"), ("incarnation.1", "noise")), "noted", "a number that was never used"),
    (faults(("checkpoint", "old")), "noted", "is older than checkpoint.1: renamed it"),
    (faults(("checkpoint", "removed")), "noted", "is missing; continuing from the previous checkpoint, after round 4"),
    (
        faults(*((name, "removed") for name in STATE if name.startswith("checkpoint"))),
        "noted",
        "starting again from round 0",
    ),
    (faults(("checkpoint", "folder"), moment="running"), "noted", "Not a directory; continuing in memory"),
    (faults(("vote", "removed")), "noted", "takes no part in elections until the membership changes"),
    (faults((NOTE, "bit")), "noted", "its token admits nobody; remove it"),
    (faults(("fork", "bit")), "refused", "remove it, because peers show the proof again"),
    (faults(("fork", "removed")), "limit", ""),
    (faults(("revocation", "noise")), "refused", "remove it, because peers show the proof again"),
    (faults(moment="full from the start"), "refused", "No space left on device; free some space"),
    (faults(moment="read-only from round 1"), "refused", "Read-only file system"),
    (faults(moment="killed at 9"), "unaffected", ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "outcome", "text"), SPREAD, ids=[str(case) for case, _, _ in SPREAD])
def test_fault_on_disk_is_survived_or_named(ground, case, outcome, text):
    first, second, runs = play(case, ground)
    assert first == outcome, runs[0].words
    assert "violation" not in second, runs[1].words
    assert text in runs[0].words


@pytest.fixture(scope="module")
def newcomer_ground(tmp_path_factory):
    return NewcomerGround(tmp_path_factory.mktemp("newcomer"))


NEWCOMER_SPREAD = [
    (faults(("membership.begin", "emptied")), "refused", "remove it and federation.toml, and join again"),
    (faults(("membership.begin", "old")), "refused", "has 7 entries, and had 12 at the last start; copy it"),
    (faults(("membership.begin", "removed")), "refused", "entries, and had 12 at the last start; copy it"),
    (faults(("membership.begin", "noise"), moment="running"), "unaffected", ""),
    (faults(("membership", "old")), "noted", "is older than its copy"),
    (faults(moment="full from round 1"), "refused", "No space left on device"),
    *((faults(moment=f"{kind} at {number}"), None, "") for kind in ("killed", "failing") for number in (1, 5, 9)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "outcome", "text"), NEWCOMER_SPREAD, ids=[str(case) for case, _, _ in NEWCOMER_SPREAD])
def test_fault_on_disk_of_a_newcomer_is_survived_or_named(newcomer_ground, case, outcome, text):
    first, second, runs = play(case, newcomer_ground)
    assert first == outcome or (outcome is None and not first.startswith("violation")), (first, runs[0].words)
    assert not second.startswith("violation"), (second, runs[1].words)
    assert text in runs[0].words


@pytest.fixture(scope="module", params=["own noise", "noise that cancels"])
def private_ground(request, tmp_path_factory):
    pytest.importorskip("dp_accounting")
    if request.param == "own noise":
        return Ground(tmp_path_factory.mktemp("private"), private=PRIVATE)
    ground = Ground(tmp_path_factory.mktemp("correlated"), policy=DSGD, private=CORRELATED)
    assert read_ledger(ground.alice, SystemDisk()).colluding == 0
    return ground


@contextlib.contextmanager
def counted_trainings(folder):
    """Check before each private training that the ledger on the disk has its steps, and those of all before it.

    Yields a list of the steps that the ledger had at each training.
    """
    usual, found = PrivacyLedger.draw_key, []

    def draw_key(ledger):
        found.append(read_ledger(folder, SystemDisk()).made)
        return usual(ledger)

    PrivacyLedger.draw_key = draw_key
    try:
        yield found
    finally:
        PrivacyLedger.draw_key = usual


PRIVATE_SPREAD = [
    (faults(("ledger", "emptied")), "refused", "which counts the private steps, is damaged; restore its newest copy"),
    (faults(("ledger", "old")), "refused", "it is an older copy; restore the newest one"),
    (faults(("ledger", "removed")), "refused", "restore its newest copy"),
    (faults(("ledger", "folder"), moment="running"), None, ""),
    (faults(("ledger", "read-only")), "noted", "this node does not train until it can"),
    (faults(moment="full from round 1"), "refused", "No space left on device"),
    *((faults(moment=f"{kind} at {number}"), None, "") for kind in ("killed", "failing") for number in range(1, 16)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "outcome", "text"), PRIVATE_SPREAD, ids=[str(case) for case, _, _ in PRIVATE_SPREAD])
def test_no_private_training_is_missing_in_the_ledger(private_ground, case, outcome, text):
    before = private_ground.expected.steps
    with counted_trainings(private_ground.alice) as trainings:
        first, second, runs = play(case, private_ground)
    assert first == outcome or (outcome is None and not first.startswith("violation")), (first, runs[0].words)
    assert not second.startswith("violation"), (second, runs[1].words)
    assert text in runs[0].words
    assert all(made > earlier for earlier, made in itertools.pairwise([before, *trainings]))  # each has steps of its own


@pytest.mark.slow
def test_lost_key_is_never_replaced(ground):
    for name in ("key.pem", "admission.pem"):
        play(faults((name, "removed")), ground)
        assert not (ground.alice / name).exists()
        play(faults((name, "noise")), ground)
        assert (ground.alice / name).read_bytes() != ground.files[name]


@pytest.mark.slow
def test_peer_brings_an_older_folder_up_to_date(tmp_path):
    ground = Ground(tmp_path, deadline=10.0, members=2)
    whole, *_ = peers()
    first, second, runs = play(whole, ground)
    assert (first, second) == ("noted", "noted")
    assert OLDER in runs[0].words
    both = Case("stopped", (("membership", "old"), ("membership.copy", "old")), peer=True)
    assert play(both, ground)[0] == "refused"


def test_judge_reports_losses_without_a_word():
    before = State(starts=4, membership=5, round=4, key=b"k", budget=(3, 0, 0))
    right = State(starts=5, membership=5, round=6, key=b"k", budget=(3, 0, 0))
    case, quiet = faults(("vote", "old")), Run(code=0)
    assert judge(case, quiet, right, before) == "unaffected"
    for lost in ({"starts": 4}, {"membership": 4}, {"round": 3}, {"key": None}, {"budget": (0, 0, 0)}):
        assert judge(case, quiet, replace(right, **lost), before).startswith("violation: silent")
    named = Run(code=0, events=[("WARNING", "incarnation is damaged")])
    assert not judge(faults(("incarnation", "old")), named, replace(right, starts=4), before).startswith("violation")
    for code, errors in ((0, []), (2, []), (2, ["vote: a", "b; c"]), (2, ["vote is damaged"]), (2, ["a; b"]), (3, [])):
        assert (judge(case, Run(code=code, errors=errors), right, before) == "unaffected") == (code == 0)
    assert judge(case, Run(code=2, errors=["vote is damaged; remove it"]), right, before) == "refused"
    assert judge(case, Run(fault="hangs"), right, before) == "violation: hangs"


# The whole


def report(cases, ground, verbose=False):
    """Play cases, print their outcomes, and return the number of each."""
    counts = Counter()
    for case in cases:
        first, second, runs = play(case, ground)
        wrong = "violation" in first + second
        counts[max((each.partition(":")[0] for each in (first, second)), key=OUTCOMES.index)] += 1
        print(f"{case}: {first} / {second}", flush=True)
        if verbose or wrong:
            for number, run in enumerate(runs, 1):
                for line in [*run.errors, *(f"{level} {text}" for level, text in run.events if level != "INFO")]:
                    print(f"      {number} {line}")
    return counts


def main_of_matrix():
    parser = argparse.ArgumentParser(description="Damage the files of a node in all ways, and print the outcomes.")
    parser.add_argument("--only", default="", metavar="TEXT", help="run only the cases with this text")
    parser.add_argument(
        "--ground", default="", help="run only the cases in this folder: own, private, correlated, newcomer, peers"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print the lines of each node")
    options = parser.parse_args()
    counts = Counter()
    grounds = {
        "own": (matrix(), Ground),
        "private": (private(), partial(Ground, private=PRIVATE)),
        "correlated": (private(), partial(Ground, policy=DSGD, private=CORRELATED)),
        "newcomer": (newcomer(), NewcomerGround),
        "peers": (peers(), partial(Ground, deadline=5.0, members=2)),
    }
    for name, (cases, make) in grounds.items():
        chosen = [case for case in cases if options.only in str(case) and options.ground in ("", name)]
        if chosen and not (name in ("private", "correlated") and find_spec("dp_accounting") is None):
            with tempfile.TemporaryDirectory(prefix="p2pfl-disk-") as root:
                print(f"ground: {name}", flush=True)
                counts += report(chosen, make(Path(root)), options.verbose)
    print(f"{counts.total()} cases: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return 1 if counts["violation"] else 0


if __name__ == "__main__":
    sys.exit(main_of_matrix())
