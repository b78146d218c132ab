"""Keys: weak public keys, for which no signature is valid, and encrypted key files."""

import os
import subprocess

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from p2pfl.protocols import key_files
from p2pfl.protocols.errors import IdentityError, PassphraseError
from p2pfl.protocols.identity import Identity, Verifier, is_weak, verify
from tests.support.weak_keys import NOT_CANONICAL, SMALL_ORDER, TWINS, WEAK, forged

PASSPHRASE = b"correct horse battery"


def valid_for_library(public, signature, data):
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except InvalidSignature:
        return False
    return True


@pytest.mark.parametrize("public", SMALL_ORDER, ids=bytes.hex)
def test_key_of_small_order_verifies_nothing(public):
    data, signature = forged(public)
    assert valid_for_library(public, signature, data)
    assert is_weak(public)
    assert not verify(public, signature, data)
    with pytest.raises(IdentityError, match="weak key"):
        Verifier(public)


@pytest.mark.parametrize("public", NOT_CANONICAL, ids=bytes.hex)
def test_non_canonical_key_is_refused(public):
    assert is_weak(public)
    with pytest.raises(IdentityError, match="weak key"):
        Verifier(public)


def test_list_of_weak_keys_is_complete():
    assert len(SMALL_ORDER) == 8
    assert len(NOT_CANONICAL) == 38 + 2  # 19 values of y from p on, with both signs; x = 0 with a sign
    assert len(set(WEAK)) == 48
    assert set(TWINS) < set(NOT_CANONICAL)


def test_generated_keys_are_not_weak():
    identities = [Identity.from_seed(os.urandom(32)) for _ in range(100)]
    assert not any(is_weak(identity.public) for identity in identities)
    assert all(verify(identity.public, identity.sign(b"x"), b"x") for identity in identities)


@pytest.mark.parametrize("public", [b"", bytes(31), b"\2" * 33])
def test_verify_with_malformed_key_is_false(public):
    assert not verify(public, bytes(64), b"x")


# Encrypted key files


@pytest.fixture
def encrypted(tmp_path, monkeypatch):
    monkeypatch.setattr(key_files, "ITERATIONS", 1000)  # fewer, for speed; the file states their number
    path = tmp_path / "admission.pem"
    return path, Identity.create(path, PASSPHRASE)


def test_encrypted_key_loads_only_with_its_passphrase(encrypted):
    path, identity = encrypted
    assert key_files.is_encrypted(path)
    assert Identity.load(path, PASSPHRASE).public == identity.public
    with pytest.raises(PassphraseError, match="is encrypted and needs its passphrase"):
        Identity.load(path)
    with pytest.raises(PassphraseError, match=r"the passphrase of .* is wrong"):
        Identity.load(path, b"correct horse batterz")


def test_encrypted_key_file_does_not_contain_plain_key(encrypted):
    path, identity = encrypted
    secret = identity.private_pem().splitlines()[1]
    assert secret not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600


def test_encrypted_key_with_changed_byte_is_damaged(encrypted):
    path, _ = encrypted
    whole = path.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(IdentityError, match="is damaged"):
            Identity.load(path, PASSPHRASE)


def test_encrypted_key_is_read_by_openssl(encrypted):
    path, identity = encrypted
    command = ["openssl", "pkey", "-in", str(path), "-passin", f"pass:{PASSPHRASE.decode()}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    assert done.returncode == 0, done.stderr
    assert done.stdout == identity.private_pem()


def test_plain_key_loads_with_any_passphrase(tmp_path):
    path = tmp_path / "key.pem"
    identity = Identity.create(path)
    assert not key_files.is_encrypted(path)
    assert Identity.load(path, PASSPHRASE).public == identity.public


def test_short_passphrase_is_refused_and_writes_no_file(tmp_path):
    with pytest.raises(IdentityError, match="at least 8 characters"):
        Identity.create(tmp_path / "key.pem", b"secret")
    assert not (tmp_path / "key.pem").exists()
