"""Files of a newcomer that has begun with a checkpoint, before and after it has received the membership log."""

from hashlib import sha256

import msgspec
import pytest

from p2pfl._util.disk import SYSTEM
from p2pfl.errors import ConfigurationError
from p2pfl.node.federation import membership_file
from p2pfl.node.federation.membership_file import BEGINNING, MembershipFile, load_federation, write_federation
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership import checkpoint
from p2pfl.protocols.membership.federation_file import Federation
from p2pfl.protocols.membership.log import Membership

ADMISSION = Identity.from_seed(bytes(32))
FILE, OTHER = (Federation.sign({"name": name, "rounds": 5}, ADMISSION) for name in ("home", "other"))
NAMES = [f"n{k}" for k in range(6)]
FILES = "federation.toml", "membership", "membership.copy", BEGINNING


def key(name):
    return Identity.from_seed(sha256(name.encode()).digest()).public


def log(*names, file=FILE):
    made = Membership(file)
    for name in names:
        made.append(ADMISSION, "add", name, key(name))
    return made


WHOLE = log(*NAMES)
BEGUN = checkpoint.make(WHOLE, ADMISSION, ["n5", "n1"])


def newcomer():
    membership = Membership(FILE)
    membership.begin(checkpoint.read(BEGUN, FILE))
    return membership


@pytest.fixture
def folder(tmp_path):
    write_federation(tmp_path, newcomer())
    return tmp_path


def there(folder):
    return {name for name in FILES if (folder / name).exists()}


def test_newcomer_continues_with_the_entries_that_it_has(folder):
    assert there(folder) == {"federation.toml", BEGINNING}
    membership, file = load_federation(folder), MembershipFile(folder)
    assert (list(membership.members), membership.stored) == (["n1", "n5"], 0)
    membership.extend(WHOLE.after(0, 600))
    file.save(membership)
    assert there(folder) == {*FILES}
    membership = load_federation(folder)
    assert (list(membership.members), membership.stored, membership.membership_version) == (["n1", "n5"], 3, 6)
    membership.extend(WHOLE.after(3, 4096))
    file = MembershipFile(folder)
    file.save(membership)
    assert there(folder) == {"federation.toml", "membership", "membership.copy"}
    assert load_federation(folder).encode() == WHOLE.encode()


def test_entries_after_the_checkpoint_are_kept_over_a_restart(folder):
    known, file = load_federation(folder), MembershipFile(folder)
    ahead = log(*NAMES)
    ahead.append(ADMISSION, "remove", "n1", key("n1"))
    file.save(known)
    known.extend(ahead.after(6, 4096))
    assert file.lacks(known)
    file.save(known)
    assert not file.lacks(known)
    again = load_federation(folder)
    assert (again.membership_version, again.stored, list(again.members)) == (7, 0, ["n5"])
    assert again.refusal(key("n1")) == "revoked"
    ahead.append(ADMISSION, "add", "late", key("late"))
    again.extend(ahead.after(7, 4096))
    again.extend(WHOLE.after(0, 600))
    MembershipFile(folder).save(again)
    again = load_federation(folder)
    assert (again.membership_version, again.stored, list(again.members)) == (8, 3, ["late", "n5"])
    again.extend(WHOLE.after(3, 4096))
    MembershipFile(folder).save(again)
    assert there(folder) == {"federation.toml", "membership", "membership.copy"}
    assert load_federation(folder).encode() == ahead.encode()


class Broken:
    """A disk that fails after some operations, as a process that is killed leaves it."""

    def __init__(self, left):
        self._left = left

    def __getattr__(self, name):
        def work(*given, **options):
            if name in ("create", "rename", "remove", "sync"):
                if not self._left:
                    raise KeyboardInterrupt
                self._left -= 1
            return getattr(SYSTEM, name)(*given, **options)

        return work


def test_killed_at_any_operation_it_is_a_stranger_or_a_member(tmp_path):
    whole = log(*NAMES)
    outcomes = []
    for left in range(60):
        folder = tmp_path / str(left)
        folder.mkdir()
        try:
            write_federation(folder, newcomer(), Broken(left))
        except KeyboardInterrupt:
            found = load_federation(folder)
            assert found is None or list(found.members) == ["n1", "n5"]
            write_federation(folder, newcomer())  # it joins again
            outcomes.append(found is not None)
        else:
            break
    assert outcomes[0] is False
    assert len(outcomes) > 6
    for left in range(60):
        folder = tmp_path / f"complete-{left}"
        folder.mkdir()
        write_federation(folder, newcomer())
        membership = load_federation(folder)
        membership.extend(whole.encode())
        try:
            MembershipFile(folder, disk=Broken(left)).save(membership)
        except KeyboardInterrupt:
            found = load_federation(folder)
            assert (found.is_complete, found.stored) in [(False, 0), (True, 6)]
            assert list(found.members) in (["n1", "n5"], NAMES)
        else:
            break
    assert left > 6
    assert not (folder / BEGINNING).exists()


def test_damaged_beginning_is_refused_with_the_remedy(folder):
    path = folder / BEGINNING
    good = path.read_bytes()
    for changed in (b"", good[:-1], good[:40], good + b"\0", bytes([good[0] ^ 1]) + good[1:]):
        path.write_bytes(changed)
        with pytest.raises(ConfigurationError, match=r"is damaged: its checksum is wrong; remove it and federation\.toml"):
            load_federation(folder)
    path.unlink()
    with pytest.raises(ConfigurationError, match="membership is missing; copy it from"):
        load_federation(folder)


def test_beginning_of_another_federation_is_refused(folder):
    other = log(*NAMES, file=OTHER)
    membership_file.write_sealed(
        folder / BEGINNING,
        b"p2pfl membership beginning 1\n",
        msgspec.msgpack.encode((checkpoint.make(other, ADMISSION, ["n1"]), b"\x90")),
    )
    with pytest.raises(ConfigurationError, match=r"another federation; remove it and federation\.toml"):
        load_federation(folder)


def test_beginning_that_was_left_behind_does_not_count(folder):
    write_federation(folder, log(*NAMES, "late"))
    assert not (folder / BEGINNING).exists()
    (folder / BEGINNING).write_bytes(b"")
    write_federation(folder, log(*NAMES, "late", "later"))
    found = load_federation(folder)
    assert found.is_complete
    assert "later" in found.members
