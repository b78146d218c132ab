"""Admission key of a federation, in the folder of the node that created it. Its owner decides which nodes are members.

admission.pem       the key in force, mode 0600; it may be encrypted with a passphrase
admission.pem.old   the previous key, which is no longer in force
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2pfl.errors import ConfigurationError
from p2pfl.protocols import key_files
from p2pfl.protocols.errors import FederationError, IdentityError, PassphraseError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.membership.log import Membership
from p2pfl.system.atomic_files import reason, replace_file, sync_folder
from p2pfl.system.disk import PRIVATE

ADMISSION = "admission.pem"


def may_admit(folder: Path) -> bool:
    """Return whether the admission key is in a node's folder."""
    return (folder / ADMISSION).exists()


def is_encrypted(folder: Path) -> bool:
    """Return whether the admission key in a node's folder needs a passphrase; False if there is no key.

    Raises:
        ConfigurationError: the key cannot be read.
    """
    with as_configuration():
        return any(path.exists() and key_files.is_encrypted(path) for path in (folder / ADMISSION, _successor(folder)))


def load(folder: Path, membership: Membership, passphrase: bytes | None = None) -> Identity:
    """Return the admission key in force. Complete a hand-over that was interrupted after it was signed.

    Call this only while no other process adds to the log.

    Raises:
        ConfigurationError: there is no key here, it is not the one in force, or the passphrase is missing or wrong.
    """
    path, successor = folder / ADMISSION, _successor(folder)
    if not may_admit(folder):
        raise ConfigurationError(f"{folder} has no {ADMISSION}; run this command at the node with the admission key")
    locked: list[PassphraseError] = []
    with as_configuration():
        for each in (path, successor):
            if not each.exists():
                continue
            try:
                identity = Identity.load(each, passphrase)
            except PassphraseError as error:
                locked.append(error)
                continue
            if identity.public != membership.admission:
                continue
            if each is successor:
                replace_file(folder / f"{ADMISSION}.old", [path.read_bytes()], mode=PRIVATE)
                successor.replace(path)
                sync_folder(folder)
            return identity
        if locked:
            raise locked[0]
    raise ConfigurationError(f"{path} is no longer the admission key: another key has replaced it")


def create(folder: Path, backup: Path, passphrase: bytes | None = None) -> Identity:
    """Create an admission key and a copy of its file.

    Raises:
        ConfigurationError: there is one already, a file cannot be written, the copy would overwrite a file, or the
            passphrase is too short. No file is left behind then.
    """
    return _create(folder / ADMISSION, backup, passphrase)


def create_successor(folder: Path, backup: Path, passphrase: bytes | None = None) -> Identity:
    """Create the next key, as `create` does; `load` activates it once a hand-over to it is signed."""
    _successor(folder).unlink(missing_ok=True)  # from a hand-over that was interrupted before it was signed
    return _create(_successor(folder), backup, passphrase)


def discard(folder: Path, backup: Path) -> None:
    """Remove a newly created key and its copy, because nothing depends on it yet."""
    (folder / ADMISSION).unlink(missing_ok=True)
    backup.unlink(missing_ok=True)


def _successor(folder: Path) -> Path:
    return folder / f"{ADMISSION}.new"


def _create(path: Path, backup: Path, passphrase: bytes | None) -> Identity:
    with as_configuration():
        identity = Identity.create(path, passphrase)
    try:
        key_files.write_new(backup, path.read_bytes())
    except FileExistsError as error:
        path.unlink()
        raise ConfigurationError(f"{backup} exists; choose another file for the backup of the admission key") from error
    except OSError as error:
        path.unlink()
        raise ConfigurationError(f"cannot write the backup of the admission key to {backup}: {reason(error)}") from error
    return identity


@contextmanager
def as_configuration() -> Iterator[None]:
    """Convert errors of keys, tokens and disks to ConfigurationError, because the user can correct them."""
    try:
        yield
    except (FederationError, IdentityError) as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename or 'a file'}: {reason(error)}") from error
