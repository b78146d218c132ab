"""Durability under file damage, kills at any moment, and a disk that is full or read-only."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path

import pytest

from p2pfl._util import failpoints
from p2pfl._util.atomic_files import DamagedFileError, DiskErrorReporter, read_sealed, replace_file, write_sealed
from p2pfl.errors import ConfigurationError
from p2pfl.node.checkpoint import Checkpoint, FileStore
from p2pfl.node.cli.main import main
from p2pfl.node.folder import config, incarnation
from p2pfl.node.folder.facts import FACTS
from p2pfl.node.log import LOG
from p2pfl.node.status.reader import current
from p2pfl.protocols.errors import IdentityError
from p2pfl.protocols.identity import Identity
from tests.support.depth import many, spread
from tests.support.limits import limited
from tests.support.logs import log_to
from tests.support.processes import processes

resource = pytest.importorskip("resource", reason="there are no file size limits")
ROOT = Path(__file__).parents[2]
MAGIC = b"test 1\n"


def flipped(data):
    """Yield the data with one bit flipped: each bit with P2PFL_DEEP, else one of almost every byte."""
    for position in range(0, 8 * len(data), many(9, 1)):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        yield bytes(changed)


def checkpoint(round):
    return Checkpoint("alice", 0, b"", round, b"", {}, {}, 0, "", b"", [], False)


# Sealed files


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"17", bytes(range(64))], ids=["none", "short", "long"])
def test_sealed_file_round_trips_and_any_change_is_detected(tmp_path, content):
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


def test_read_sealed_rejects_file_of_another_kind(tmp_path):
    path = tmp_path / "file"
    write_sealed(path, b"magic ", b"1\ncontent")
    for magic in (b"magic 1\n", b"magic", b""):
        with pytest.raises(DamagedFileError):
            read_sealed(path, magic)


def test_read_sealed_raises_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "file", MAGIC)


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_sealed_file_is_private_despite_leftover_of_crash(tmp_path):
    path = tmp_path / "file"
    (tmp_path / "file.new").write_bytes(b"half")
    (tmp_path / "file.new").chmod(0o644)
    write_sealed(path, MAGIC, b"content")
    assert path.stat().st_mode & 0o777 == 0o600
    write_sealed(path, MAGIC, b"content", mode=0o640)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.slow
def test_checkpoint_with_any_flipped_bit_falls_back_to_previous(tmp_path):
    store = FileStore(tmp_path / "checkpoint")
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    for changed in flipped(store.path.read_bytes()):
        store.path.write_bytes(changed)
        assert store.load() == checkpoint(1)
        assert (tmp_path / "checkpoint.damaged").read_bytes() == changed


# The incarnation counter


def test_count_start_increments_at_each_call(tmp_path):
    path = tmp_path / "incarnation"
    assert [incarnation.count_start(path) for _ in range(4)] == [1, 2, 3, 4]


def test_count_start_names_file_of_earlier_version(tmp_path):
    (tmp_path / "boot").write_bytes(b"")
    with pytest.raises(
        ConfigurationError, match=r"boot was written by an earlier version of p2pfl; rename it to incarnation$"
    ):
        incarnation.count_start(tmp_path / "incarnation")


@pytest.mark.slow
def test_count_start_after_damage_repeats_no_number(tmp_path):
    path, before = tmp_path / "incarnation", tmp_path / "incarnation.1"
    for _ in range(3):
        incarnation.count_start(path)
    newest, older = path.read_bytes(), before.read_bytes()
    for changed in (*flipped(newest), b"", newest + b"0", b"4\n"):
        path.write_bytes(changed)
        before.write_bytes(older)
        (tmp_path / FACTS).unlink(missing_ok=True)
        said = []
        assert incarnation.count_start(path, log_to(said)) == 2 + incarnation.JUMP + 1
        assert said == [
            f"{path} is damaged or missing: continuing from {2 + incarnation.JUMP}, a number that was never used"
        ]
        assert incarnation.count_start(path, log_to(said)) == 2 + incarnation.JUMP + 2
        assert len(said) == 1


def test_count_start_after_deletion_continues_beyond(tmp_path):
    path = tmp_path / "incarnation"
    for _ in range(3):
        incarnation.count_start(path)
    path.unlink()
    assert incarnation.count_start(path) > incarnation.JUMP


def test_count_start_repairs_damaged_older_count(tmp_path):
    path, before = tmp_path / "incarnation", tmp_path / "incarnation.1"
    for _ in range(3):
        incarnation.count_start(path)
    before.write_bytes(b"")
    said = []
    assert incarnation.count_start(path, log_to(said)) == 4
    assert said == []
    path.write_bytes(b"")
    assert incarnation.count_start(path) > incarnation.JUMP  # the older count was repaired


def test_count_start_without_intact_count_is_refused(tmp_path):
    path, before = tmp_path / "incarnation", tmp_path / "incarnation.1"
    incarnation.count_start(path)
    for damage in (lambda: before.write_bytes(b"x"), before.unlink):
        damage()
        (tmp_path / FACTS).unlink(missing_ok=True)
        path.write_bytes(b"2\n")
        with pytest.raises(ConfigurationError, match=r"incarnation and incarnation\.1 are damaged or missing") as refused:
            incarnation.count_start(path)
        assert "create a new node" in str(refused.value)
        assert "\n" not in str(refused.value)
        assert path.read_bytes() == b"2\n"


# The key


@pytest.mark.slow
def test_load_key_detects_any_flipped_bit_without_quoting_it(tmp_path):
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


def test_private_pem_equals_content_of_key_file(tmp_path):
    path = tmp_path / "key.pem"
    identity = Identity.create(path)
    assert path.read_bytes().startswith(identity.private_pem())
    assert Identity.load(path).private_pem() == identity.private_pem()
    assert identity.private_pem().decode() not in repr(identity)


# A disk that is full, in this process


def test_failed_save_is_reported_once_and_keeps_old_checkpoint(tmp_path):
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
    assert said == [f"cannot write {store.path}: File too large; continuing in memory"]
    store.save(checkpoint(4))
    assert store.problem == ""
    store.save(checkpoint(5))
    assert said[1:] == ["can write checkpoints again"]
    assert store.load() == checkpoint(5)


def test_disk_error_reporter_reports_each_failure_and_recovery(tmp_path):
    said = []
    tries = DiskErrorReporter(tmp_path / "file", "files", log_to(said))
    for full in (True, True, False, False, True, False):
        with tries.tolerate():
            if full:
                raise OSError(28, "No space left on device")
        assert bool(tries.problem) == full
    assert [line.split()[0] for line in said] == ["cannot", "can", "cannot", "can"]


def test_disk_error_reporter_raises_other_errors(tmp_path):
    tries = DiskErrorReporter(tmp_path / "file", "files", LOG)
    with pytest.raises(ValueError, match="other"), tries.tolerate():
        raise ValueError("other")
    assert tries.problem == ""


def test_replace_file_on_full_disk_leaves_no_file(tmp_path):
    with limited(10), pytest.raises(OSError, match="File too large"):
        replace_file(tmp_path / "file", [bytes(100)])
    assert list(tmp_path.iterdir()) == []


def command(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_init_on_full_disk_creates_no_node(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with limited(0):
        assert command(capsys, "init", "alice") == (2, "", "cannot create alice: File too large\n")
    assert not Path("alice", config.KEY).exists()
    assert command(capsys, "init", "alice")[0] == 0


def test_run_on_full_disk_does_not_start(capsys, tmp_path, monkeypatch):
    import_module("p2pfl.node.runtime.run")  # before the limit, which would cut off the bytecode that Python writes
    monkeypatch.chdir(tmp_path)
    command(capsys, "init", "alice")
    with limited(40):  # less than the file needs, but more than scikit-learn writes at import
        code, _, err = command(capsys, "run", "alice")
    assert (code, err) == (2, "cannot write alice/facts: File too large; permit larger files\n")


@pytest.mark.slow
def test_run_fails_if_its_last_round_is_not_on_the_disk(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command(capsys, "init", "alice", "--policy", "local")
    with limited(2**14):  # less than a checkpoint, but more than the status
        code, out, _ = command(capsys, "run", "alice", "--set", "rounds=2")
    lost = (
        "round 2 is lost, because alice/checkpoint cannot be written: File too large;"
        " correct that, and run again to continue after round 0"
    )
    assert code == 1
    assert out.splitlines()[-1].endswith(lost)
    told = current(Path("alice"))
    assert (told["state"], told["reason"]) == ("failed", lost)
    assert command(capsys, "run", "alice", "--set", "rounds=2")[0] == 0


# Failpoints


def test_failpoint_table_is_complete():
    named = set()
    for path in (ROOT / "node").rglob("*.py"):
        named.update(re.findall(r"\bfailpoint\(\"([^\"]*)\"\)", path.read_text()))
    assert named == set(failpoints.POINTS)


def test_failpoint_variable_names_point_and_count():
    assert failpoints.parse("") == ("", 1)
    assert failpoints.parse("published") == ("published", 1)
    assert failpoints.parse("published:12") == ("published", 12)
    for text in ("publish", "published:", "published:0", "published:x", ":3", "published:-1"):
        with pytest.raises(ValueError, match=r"P2PFL_FAILPOINT is .* it must be one of incarnation-counted"):
            failpoints.parse(text)


REACHING = """
from p2pfl._util.failpoints import failpoint
for k in range(5):
    print(k, flush=True)
    failpoint("round-saved")
    failpoint("published")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "told"), [("published", 1), ("published:3", 3), ("published:6", 5), ("", 5)])
def test_process_ends_at_its_failpoint(text, told):
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
KILLS = many(4, 10)
LONG = ALONE.format(rounds=150 * KILLS, task="concept-shift")
LARGE = ALONE.format(rounds=100_000, task="digits").replace("[policy]", "samples = 60\n[policy]")
LIFE = ("checkpoint-written", "checkpoint-shifted", "checkpoint-saved", "published", "round-saved")


def undisturbed_params(folder, toml):
    """Return the final parameters of an undisturbed run."""
    with processes(folder, ("alice",), toml) as undisturbed:
        undisturbed.start()
        undisturbed.wait()
        assert undisturbed.running["alice"].returncode == 0
        return undisturbed.checkpoint("alice").params


@pytest.fixture(scope="module")
def quick_params(tmp_path_factory):
    return undisturbed_params(tmp_path_factory.mktemp("undisturbed"), QUICK)


def saved_incarnation(federation):
    with suppress(FileNotFoundError):
        return int(read_sealed(federation.folders["alice"] / config.INCARNATION, incarnation.MAGIC))
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("point", ["incarnation-counted", *LIFE, *(f"{point}:4" for point in spread(LIFE, 2))])
def test_node_killed_at_failpoint_ends_with_same_model(tmp_path, monkeypatch, quick_params, point):
    with processes(tmp_path, ("alice",), QUICK) as federation:
        monkeypatch.setenv(failpoints.VARIABLE, point)
        federation.start()
        printed = federation.wait()["alice"]
        assert federation.running["alice"].returncode == -signal.SIGKILL
        assert saved_incarnation(federation) == 1
        told = [int(round) for round in re.findall(r"^round (\d+) of", printed, re.MULTILINE)]
        kept = federation.checkpoint("alice")
        assert (kept.round if kept else 0) >= max(told, default=0)
        monkeypatch.delenv(failpoints.VARIABLE)
        federation.start()
        printed = federation.wait()["alice"]
        assert federation.running["alice"].returncode == 0
        assert "damaged" not in printed
        assert saved_incarnation(federation) == 2
        assert federation.checkpoint("alice").params == quick_params
        assert list(federation.folders["alice"].glob("*.new")) == []


@pytest.mark.slow
def test_node_killed_many_times_loses_no_round(tmp_path):
    draw, said, rounds = random.Random(20), [], []
    with processes(tmp_path / "killed", ("alice",), LONG) as federation:
        store = FileStore(federation.folders["alice"] / config.CHECKPOINT, log_to(said))
        kept = 0
        for life in range(1, KILLS + 1):
            federation.start()
            process = federation.running["alice"]
            federation.until(lambda life=life: saved_incarnation(federation) == life, "its start is counted")
            target = kept + draw.randrange(36)
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
        assert len(set(rounds)) > KILLS // 2
        federation.start()
        federation.wait("alice")
        assert federation.running["alice"].returncode == 0
        assert saved_incarnation(federation) == KILLS + 1
        assert said == []
        assert store.load().params == undisturbed_params(tmp_path / "whole", LONG)


# A disk that is full or read-only, under a real process


def mount(*arguments):
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    for _ in range(1000):
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
        if "busy" not in done.stderr:  # a disk is busy during a write
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


def fill(folder):
    """Fill the disk of a folder."""
    with (folder / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


@contextmanager
def full(folder, process):
    fill(folder)
    try:
        yield "No space left on device"
    finally:
        (folder / "ballast").unlink()


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
    """Limit file sizes so that checkpoints fail and the status does not; needs no right to mount."""
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2**15, before[1]))
    try:
        yield "File too large"
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of other processes are Linux only")
@pytest.mark.parametrize("trouble", [full, read_only, too_large])
def test_node_continues_on_unwritable_disk_and_recovers(tmp_path, trouble):
    root = tmp_path / "disk"
    with small_disk(root) if trouble is full else nullcontext():
        with processes(root, ("alice",), LARGE) as federation:
            federation.start()
            process, path = federation.running["alice"], federation.folders["alice"] / config.CHECKPOINT
            federation.line_with("alice", "round 3 of")
            with trouble(federation.folders["alice"], process) as why:
                assert federation.line_with("alice", "checkpoint: ") == f"cannot write {path}: {why}; continuing in memory"
                if trouble is full:
                    fill(federation.folders["alice"])  # the space of a file that was replaced meanwhile
                kept = federation.checkpoint("alice")
                assert kept.round >= 3
                if trouble is too_large:
                    federation.until(lambda: federation.status("alice")["disk"] == why, "the status shows it")
                federation.line_with("alice", f"round {kept.round + 5} of")
                told = current(federation.folders["alice"])
                if "age" not in told:  # the node itself has answered, as the path is short enough for a socket
                    assert (told["disk"], told["stored"]) == (why, kept.round)
                    assert told["round"] >= kept.round + 5
                assert federation.checkpoint("alice") == kept
            assert federation.line_with("alice", "again") in ("can write checkpoints again", "can write the status again")
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
    assert saved.params == undisturbed_params(tmp_path / "whole", LARGE.replace("100000", str(last)))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of other processes are Linux only")
def test_node_killed_on_unwritable_disk_resumes_from_checkpoint(tmp_path, quick_params):
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
        assert federation.checkpoint("alice").params == quick_params
