"""Signed file that identifies a federation, with the rules of its members, as readable TOML.

Its last line is a signature with the federation's admission key over all preceding bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import tomli_w

from p2pfl._util import toml_tables
from p2pfl.protocols.errors import FederationError
from p2pfl.protocols.identity import Identity, verify

LIMIT = 65_536  # maximum bytes of the file
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LABEL = b"p2pfl federation 1\0"
_HEAD = "# A p2pfl federation: what its members have agreed on. It is signed; a change to any byte is noticed.\n\n"
_LAST_LINE = re.compile(rb"(.*\n)# signature: ([0-9a-f]{128})\n", re.S)
_ADMISSION = re.compile(rb'^admission = "([0-9a-f]{64})"$', re.M)


@dataclass(frozen=True)
class Federation:
    """Content of a federation's file.

    Attributes:
        data: the whole file.
        id: 16 bytes, equal for all members.
        name: name of the federation, for people.
        admission: the public key that signs the membership log, until it is handed over.
        tables: the agreed rules.
    """

    data: bytes = field(repr=False)
    id: bytes
    name: str
    admission: bytes
    tables: Mapping[str, Any] = field(repr=False)

    @classmethod
    def sign(cls, tables: Mapping[str, Any], identity: Identity) -> Federation:
        """Create a federation whose admission key is `identity`.

        Args:
            tables: the agreed rules, with a `name`.

        Raises:
            FederationError: the name is missing or malformed, or the file would be too long.
        """
        whole = {"admission": identity.public.hex(), "nonce": os.urandom(16).hex(), **tables}
        content = (_HEAD + tomli_w.dumps(whole)).encode()
        signature = identity.sign(_LABEL + content)
        return cls.parse(content + f"# signature: {signature.hex()}\n".encode())

    @classmethod
    def parse(cls, data: bytes) -> Federation:
        """Read a federation's file.

        Raises:
            FederationError: the file has changed since it was signed, or it is not a federation file.
        """
        if len(data) > LIMIT:
            raise FederationError(f"the federation file has {len(data):,} bytes, at most {LIMIT:,} are allowed")
        match = _LAST_LINE.fullmatch(data)
        key = _ADMISSION.search(data) if match else None
        if match is None or key is None:
            raise FederationError("it is damaged, or not a federation file")
        content, signature = match.group(1), bytes.fromhex(match.group(2).decode())
        admission = bytes.fromhex(key.group(1).decode())
        if not verify(admission, signature, _LABEL + content):
            raise FederationError("the federation file is damaged or forged: its signature is invalid")
        try:
            tables = toml_tables.parse(content)
        except ValueError as error:
            raise FederationError(f"the federation file is signed, but it is not valid TOML: {error}") from error
        if tables.pop("admission", None) != admission.hex() or not isinstance(tables.pop("nonce", None), str):
            raise FederationError("the federation file does not name its admission key at its top")
        name = tables.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise FederationError(f"federation name {name!r} must have at most 64 letters, digits, '.', '_' and '-'")
        return cls(data, sha256(_LABEL + content).digest()[:16], name, admission, tables)
