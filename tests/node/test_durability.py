"""Durability under file damage, kills at any moment, and a disk that is full or read-only."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from p2pfl.errors import ConfigurationError
from p2pfl.node.checkpoint import Checkpoint, FileStore
from p2pfl.node.cli.main import main
from p2pfl.node.folder import config, incarnation
from p2pfl.node.log import LOG
from p2pfl.node.status.reader import current
from p2pfl.protocols.errors import IdentityError
from p2pfl.protocols.identity import Identity
from p2pfl.system import failpoints
from p2pfl.system.atomic_files import DamagedFileError, DiskErrorReporter, read_sealed, replace_file, write_sealed
from tests.support.limits import limited
from tests.support.logs import log_to
from tests.support.processes import processes

resource = pytest.importorskip("resource", reason="there are no file size limits")
ROOT = Path(__file__).parents[2]
MAGIC = b"test 1\n"


def flipped(data):
    """Every change of a single bit."""
    for position in range(8 * len(data)):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        yield bytes(changed)


def checkpoint(round):
    return Checkpoint("alice", 0, b"", round, b"", {}, {}, 0, "", b"", [], False)


# Sealed files


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"17", bytes(range(64))], ids=["none", "short", "long"])
def test_what_is_sealed_is_read_and_any_change_is_noticed(tmp_path, content):
    path = tmp_path / "file"
    write_sealed(path, MAGIC, content)
    assert read_sealed(path, MAGIC) == content
    whole = path.read_bytes()
    cut = (whole[:size] for size in range(len(whole)))
    for changed in (*flipped(whole), *cut, whole + b"\0", b"\0" + whole, whole + whole):
        path.write_bytes(changed)
        with pytest.raises(DamagedFileError, match=f"^{re.escape(str(path))} is damaged") as noticed:
            read_sealed(path, MAGIC)
        assert "\n" not in str(noticed.value)


def test_a_sealed_file_is_not_taken_for_another_kind(tmp_path):
    path = tmp_path / "file"
    write_sealed(path, b"magic ", b"1\ncontent")
    for magic in (b"magic 1\n", b"magic", b""):
        with pytest.raises(DamagedFileError):
            read_sealed(path, magic)


def test_a_missing_sealed_file_is_missing_and_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "file", MAGIC)


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_a_sealed_file_is_for_its_owner_only_whatever_a_crash_has_left_there(tmp_path):
    path = tmp_path / "file"
    (tmp_path / "file.new").write_bytes(b"half")
    (tmp_path / "file.new").chmod(0o644)
    write_sealed(path, MAGIC, b"content")
    assert path.stat().st_mode & 0o777 == 0o600
    write_sealed(path, MAGIC, b"content", mode=0o640)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.slow
def test_every_flipped_bit_of_a_checkpoint_is_noticed_and_the_one_before_it_is_loaded(tmp_path):
    store = FileStore(tmp_path / "checkpoint")
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    for changed in flipped(store.path.read_bytes()):
        store.path.write_bytes(changed)
        assert store.load() == checkpoint(1)
        assert (tmp_path / "checkpoint.damaged").read_bytes() == changed


# The incarnation counter


def test_starts_are_counted(tmp_path):
    path = tmp_path / "incarnation"
    assert [incarnation.count_start(path) for _ in range(4)] == [1, 2, 3, 4]


def test_count_start_file_of_an_earlier_version_is_named(tmp_path):
    (tmp_path / "boot").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"boot was written by an earlier version; rename it to incarnation$"):
        incarnation.count_start(tmp_path / "incarnation")


@pytest.mark.slow
def test_a_damaged_count_is_noticed_whatever_bit_it_is_and_no_number_comes_twice(tmp_path):
    path, before = tmp_path / "incarnation", tmp_path / "incarnation.1"
    for _ in range(3):
        incarnation.count_start(path)
    newest, older = path.read_bytes(), before.read_bytes()
    for changed in (*flipped(newest), b"", newest + b"0", b"4\n"):
        path.write_bytes(changed)
        before.write_bytes(older)
        said = []
        assert incarnation.count_start(path, log_to(said)) == 2 + incarnation.JUMP + 1
        assert said == [f"{path} is damaged or missing: counting on from {2 + incarnation.JUMP}, which is beyond it"]
        assert incarnation.count_start(path, log_to(said)) == 2 + incarnation.JUMP + 2
        assert len(said) == 1


def test_a_count_that_was_deleted_is_not_begun_anew(tmp_path):
    path = tmp_path / "incarnation"
    for _ in range(3):
        incarnation.count_start(path)
    path.unlink()
    assert incarnation.count_start(path) > incarnation.JUMP


def test_a_damaged_count_before_the_newest_does_no_harm(tmp_path):
    path, before = tmp_path / "incarnation", tmp_path / "incarnation.1"
    for _ in range(3):
        incarnation.count_start(path)
    before.write_bytes(b"")
    said = []
    assert incarnation.count_start(path, log_to(said)) == 4
    assert said == []
    path.write_bytes(b"")
    assert incarnation.count_start(path) > incarnation.JUMP  # it was mended


def test_without_any_whole_count_a_node_does_not_start(tmp_path):
    path, before = tmp_path / "incarnation", tmp_path / "incarnation.1"
    incarnation.count_start(path)
    for damage in (lambda: before.write_bytes(b"x"), before.unlink):
        damage()
        path.write_bytes(b"2\n")
        with pytest.raises(
            ConfigurationError, match=r"incarnation is damaged, and there is no whole incarnation\.1"
        ) as refused:
            incarnation.count_start(path)
        assert "Make a new node" in str(refused.value)
        assert "\n" not in str(refused.value)
        assert path.read_bytes() == b"2\n"


# The key


@pytest.mark.slow
def test_every_flipped_bit_of_a_key_file_is_noticed_and_nothing_of_it_is_shown(tmp_path):
    path = tmp_path / "key.pem"
    Identity.create(path)
    whole = path.read_bytes()
    secret = [line.decode() for line in whole.splitlines()]
    for changed in (*flipped(whole), whole[:-1], whole + b"\n", whole[whole.index(b"#") :], b""):
        path.write_bytes(changed)
        with pytest.raises(IdentityError, match=r"key\.pem is damaged") as refused:
            Identity.load(path)
        text = str(refused.value)
        assert "\n" not in text
        assert not any(line in text for line in secret)


def test_the_private_key_as_pem_is_the_one_in_the_file(tmp_path):
    path = tmp_path / "key.pem"
    identity = Identity.create(path)
    assert path.read_bytes().startswith(identity.private_pem())
    assert Identity.load(path).private_pem() == identity.private_pem()
    assert identity.private_pem().decode() not in repr(identity)


# A disk that is full, in this process


def test_a_checkpoint_that_cannot_be_written_is_said_once_and_the_one_before_it_stays(tmp_path):
    said = []
    store = FileStore(tmp_path / "checkpoint", log_to(said))
    store.save(checkpoint(1))
    assert store.problem == ""
    with limited(40):
        for round in (2, 3):
            store.save(checkpoint(round))
            assert store.problem == "File too large"
            assert FileStore(store.path).load() == checkpoint(1)
            assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert said == [f"cannot write {store.path}: File too large; going on from memory"]
    store.save(checkpoint(4))
    assert store.problem == ""
    store.save(checkpoint(5))
    assert said[1:] == ["writes checkpoints again"]
    assert store.load() == checkpoint(5)


def test_each_time_that_the_disk_is_full_is_said(tmp_path):
    said = []
    tries = DiskErrorReporter(tmp_path / "file", "files", log_to(said))
    for full in (True, True, False, False, True, False):
        with tries.tolerate():
            if full:
                raise OSError(28, "No space left on device")
        assert bool(tries.problem) == full
    assert [line.split()[0] for line in said] == ["cannot", "writes", "cannot", "writes"]


def test_what_is_no_fault_of_the_disk_is_not_swallowed(tmp_path):
    tries = DiskErrorReporter(tmp_path / "file", "files", LOG)
    with pytest.raises(ValueError, match="other"), tries.tolerate():
        raise ValueError("other")
    assert tries.problem == ""


def test_a_file_that_cannot_be_written_leaves_nothing_beside_it(tmp_path):
    with limited(10), pytest.raises(OSError, match="File too large"):
        replace_file(tmp_path / "file", [bytes(100)])
    assert list(tmp_path.iterdir()) == []


def command(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_node_is_not_made_on_a_full_disk(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with limited(0):
        assert command(capsys, "init", "alice") == (2, "", "cannot make alice: File too large\n")
    assert not Path("alice", config.KEY).exists()
    assert command(capsys, "init", "alice")[0] == 0


def test_a_node_does_not_start_on_a_full_disk(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command(capsys, "init", "alice")
    with limited(40):  # less than the file needs, and more than what scikit-learn writes when it is imported
        code, out, err = command(capsys, "run", "alice")
    assert (code, out, err) == (2, "", "cannot count this start in alice/incarnation: File too large\n")


# Crash points


def test_the_table_of_crash_points_is_complete():
    named = set()
    for path in (ROOT / "node").rglob("*.py"):
        named.update(re.findall(r"\bfailpoint\(\"([^\"]*)\"\)", path.read_text()))
    assert named == set(failpoints.POINTS)


def test_the_variable_names_a_point_and_a_time():
    assert failpoints.parse("") == ("", 1)
    assert failpoints.parse("published") == ("published", 1)
    assert failpoints.parse("published:12") == ("published", 12)
    for text in ("publish", "published:", "published:0", "published:x", ":3", "published:-1"):
        with pytest.raises(ValueError, match=r"P2PFL_FAILPOINT is .* it may be one of incarnation-counted"):
            failpoints.parse(text)


REACHING = """
from p2pfl.system.failpoints import failpoint
for k in range(5):
    print(k, flush=True)
    failpoint("round-saved")
    failpoint("published")
"""


@pytest.mark.parametrize(("text", "told"), [("published", 1), ("published:3", 3), ("published:6", 5), ("", 5)])
def test_a_process_ends_at_its_crash_point(text, told):
    environment = os.environ | {"PYTHONPATH": str(ROOT), failpoints.VARIABLE: text}
    ended = subprocess.run([sys.executable, "-c", REACHING], capture_output=True, text=True, env=environment)
    assert ended.stdout.split() == [str(k) for k in range(told)]
    assert ended.returncode == (0 if told == 5 else -signal.SIGKILL)


# Kills of real processes

ALONE = """
rounds = {rounds}
deadline = 10.0
[task]
name = "{task}"
[policy]
name = "random"
"""
QUICK = ALONE.format(rounds=40, task="concept-shift")
LONG = ALONE.format(rounds=500, task="concept-shift")
LARGE = ALONE.format(rounds=100_000, task="digits").replace("[policy]", "samples = 60\n[policy]")
LIFE = ("checkpoint-written", "checkpoint-shifted", "checkpoint-saved", "published", "round-saved")


def ended(folder, toml):
    """The parameters of a node that nobody disturbs."""
    with processes(folder, ("alice",), toml) as undisturbed:
        undisturbed.start()
        undisturbed.wait()
        assert undisturbed.running["alice"].returncode == 0
        return undisturbed.checkpoint("alice").params


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return ended(tmp_path_factory.mktemp("undisturbed"), QUICK)


def incarnations(federation):
    with suppress(FileNotFoundError):
        return int(read_sealed(federation.folders["alice"] / config.INCARNATION, incarnation.MAGIC))
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("point", ["incarnation-counted", *LIFE, *(f"{point}:4" for point in LIFE)])
def test_a_node_that_was_killed_at_a_crash_point_ends_as_if_it_had_not_been(tmp_path, monkeypatch, quick, point):
    with processes(tmp_path, ("alice",), QUICK) as federation:
        monkeypatch.setenv(failpoints.VARIABLE, point)
        federation.start()
        printed = federation.wait()["alice"]
        assert federation.running["alice"].returncode == -signal.SIGKILL
        assert incarnations(federation) == 1
        told = [int(round) for round in re.findall(r"^round (\d+) of", printed, re.MULTILINE)]
        kept = federation.checkpoint("alice")
        assert (kept.round if kept else 0) >= max(told, default=0)
        monkeypatch.delenv(failpoints.VARIABLE)
        federation.start()
        printed = federation.wait()["alice"]
        assert federation.running["alice"].returncode == 0
        assert "damaged" not in printed
        assert incarnations(federation) == 2
        assert federation.checkpoint("alice").params == quick
        assert list(federation.folders["alice"].glob("*.new")) == []


@pytest.mark.slow
def test_a_node_that_is_killed_twenty_times_at_random_moments_loses_nothing(tmp_path):
    draw, said, rounds = random.Random(20), [], []
    with processes(tmp_path / "killed", ("alice",), LONG) as federation:
        store = FileStore(federation.folders["alice"] / config.CHECKPOINT, log_to(said))
        kept = 0
        for life in range(1, 21):
            federation.start()
            process = federation.running["alice"]
            federation.until(lambda life=life: incarnations(federation) == life, "its start is counted")
            target = kept + draw.randrange(18)
            federation.until(lambda target=target: federation.status("alice")["round"] >= target, f"round {target}")
            with suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0, 0.03))
            process.kill()
            federation.wait("alice")
            assert process.returncode == -signal.SIGKILL
            told, loaded = federation.status("alice")["round"], store.load()
            rounds.append(loaded.round if loaded else 0)
            assert rounds[-1] >= max(kept, told)
            kept = rounds[-1]
        assert len(set(rounds)) > 10
        federation.start()
        federation.wait("alice")
        assert federation.running["alice"].returncode == 0
        assert incarnations(federation) == 21
        assert said == []
        assert store.load().params == ended(tmp_path / "whole", LONG)


# A disk that is full or read-only, under a real process


def mount(*arguments):
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    for _ in range(1000):
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
        if "busy" not in done.stderr:  # as a disk is that something is just being written to
            break
    if done.returncode:
        pytest.skip(f"mount is not permitted: {done.stderr.strip()}")


def unmount(folder):
    subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def small_disk(folder):
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        unmount(folder)


@contextmanager
def full(folder, process):
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    try:
        yield "No space left on device"
    finally:
        ballast.unlink()


@contextmanager
def read_only(folder, process):
    mount("--bind", str(folder), str(folder))
    try:
        mount("-o", "remount,bind,ro", str(folder))
        yield "Read-only file system"
    finally:
        unmount(folder)


@contextmanager
def too_large(folder, process):
    """A limit that a checkpoint exceeds and the status does not; without rights to mount anything."""
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2**15, before[1]))
    try:
        yield "File too large"
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of other processes are Linux only")
@pytest.mark.parametrize("trouble", [full, read_only, too_large])
def test_a_node_goes_on_while_nothing_can_be_written_says_so_and_recovers(tmp_path, trouble):
    root = tmp_path / "disk"
    with small_disk(root) if trouble is full else nullcontext():
        with processes(root, ("alice",), LARGE) as federation:
            federation.start()
            process, path = federation.running["alice"], federation.folders["alice"] / config.CHECKPOINT
            federation.line_with("alice", "round 3 of")
            with trouble(federation.folders["alice"], process) as why:
                assert federation.line_with("alice", "checkpoint: ") == f"cannot write {path}: {why}; going on from memory"
                kept = federation.checkpoint("alice")
                assert kept.round >= 3
                if trouble is too_large:
                    federation.until(lambda: federation.status("alice")["disk"] == why, "the status shows it")
                federation.line_with("alice", f"round {kept.round + 5} of")
                told = current(federation.folders["alice"])
                if "age" not in told:  # by the node itself, as its file may be old; unless the path is too long for a socket
                    assert (told["disk"], told["stored"]) == (why, kept.round)
                    assert told["round"] >= kept.round + 5
                assert federation.checkpoint("alice") == kept
            assert federation.line_with("alice", "again") in ("writes checkpoints again", "writes its status again")
            federation.until(lambda: federation.status("alice")["round"] > kept.round + 5, "its status is written again")
            process.send_signal(signal.SIGTERM)
            federation.line_with("alice", "stopping after this round")
            last = int(re.search(r"stopped after round (\d+)", federation.line_with("alice", "stopped after round"))[1])
            federation.wait("alice")
            assert process.returncode == 130
            assert federation.status("alice")["disk"] == ""
            assert list(federation.folders["alice"].glob("*.new")) == []
            saved = federation.checkpoint("alice")
        assert saved.round == last
    assert saved.params == ended(tmp_path / "whole", LARGE.replace("100000", str(last)))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of other processes are Linux only")
def test_a_node_that_is_killed_while_nothing_can_be_written_goes_on_from_what_was(tmp_path, quick):
    with processes(tmp_path, ("alice",), QUICK) as federation:
        federation.start()
        process = federation.running["alice"]
        federation.line_with("alice", "round 5 of")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        federation.line_with("alice", "checkpoint: File too large")
        kept = federation.checkpoint("alice")
        process.kill()
        federation.wait("alice")
        assert federation.checkpoint("alice") == kept
        assert 5 <= kept.round < 40
        federation.start()
        federation.wait("alice")
        assert federation.running["alice"].returncode == 0
        assert federation.checkpoint("alice").params == quick
