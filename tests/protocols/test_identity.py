"""Keys: weak public keys, for which no signature is valid, and encrypted key files."""

import os
import subprocess

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from p2pfl.protocols import key_files
from p2pfl.protocols.errors import IdentityError, PassphraseError
from p2pfl.protocols.identity import Identity, Verifier, is_weak, verify
from tests.support.weak_keys import NOT_CANONICAL, SMALL_ORDER, TWINS, WEAK, forged

PASSPHRASE = b"correct horse battery"
PKCS8 = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGjMF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAkBBA3I8twpKNKp3O+p59F
rBB0AgID6DAMBggqhkiG9w0CCQUAMB0GCWCGSAFlAwQBKgQQBegxzIb8htqkSHkG
oPBeUwRA/OqwjIOj58DfRFSP1+4dgOT76Pwer393dxpY7HbdioDNKoibFG+rdD3z
nCw535rplHxDWsxStnDGYE5i2zwLBA==
-----END ENCRYPTED PRIVATE KEY-----
# sha256: 07f221d3d8f74276dc5c5c3e1ad9f2d3f09257cd9ea0083d7a3df861fd840912
"""  # with PBES2, 1,000 rounds of PBKDF2 and AES-256-CBC


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
    monkeypatch.setattr(key_files, "ROUNDS", 1)  # fewer, for speed; the file states their number
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


@pytest.mark.slow
def test_encrypted_key_with_changed_byte_is_damaged(encrypted):
    path, _ = encrypted
    whole = path.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(IdentityError, match="is damaged"):
            Identity.load(path, PASSPHRASE)


def test_encrypted_key_is_read_by_openssh(encrypted):
    path, identity = encrypted
    command = ["ssh-keygen", "-y", "-P", PASSPHRASE.decode(), "-f", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("OpenSSH is not installed")
    assert done.returncode == 0, done.stderr
    assert load_ssh_public_key(done.stdout).public_bytes_raw() == identity.public


def test_key_encrypted_as_pkcs8_is_read(tmp_path):
    path = tmp_path / "admission.pem"
    path.write_text(PKCS8)
    path.chmod(0o600)
    assert key_files.is_encrypted(path)
    assert Identity.load(path, PASSPHRASE[:13]).public == Identity.from_seed(bytes(range(32))).public
    with pytest.raises(PassphraseError, match=r"the passphrase of .* is wrong"):
        Identity.load(path, PASSPHRASE)


def test_plain_key_loads_with_any_passphrase(tmp_path):
    path = tmp_path / "key.pem"
    identity = Identity.create(path)
    assert not key_files.is_encrypted(path)
    assert Identity.load(path, PASSPHRASE).public == identity.public


def test_short_passphrase_is_refused_and_writes_no_file(tmp_path):
    with pytest.raises(IdentityError, match="at least 8 characters"):
        Identity.create(tmp_path / "key.pem", b"secret")
    assert not (tmp_path / "key.pem").exists()
