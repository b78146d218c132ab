"""Reader of neighbours by a rule as in docs/wire-protocol.md."""

from __future__ import annotations

from hashlib import sha256

import msgpack


def tokens_of(log):
    """Return the token of each member of a log: the hash of the signed entry that has added it."""
    found = {}
    for whole in log.entries:
        _, _, _, action, *rest = msgpack.unpackb(msgpack.unpackb(whole)[0])
        if action == "add":
            found[rest[0]] = sha256(whole).digest()
        elif action == "remove":
            del found[rest[0]]
    return found


def rings_of(log, given):
    """Return the neighbours of each member."""
    tokens = tokens_of(log)
    found = {name: set() for name in tokens}
    for ring in range(given["degree"] // 2):
        places = {}
        for name, token in tokens.items():
            text = f"{given['seed']}\0{given['round']}\0{ring // 4}\0"
            hashed = sha256(b"p2pfl rings 1\0" + text.encode() + token).digest()
            places[name] = int.from_bytes(hashed[ring % 4 * 8 :][:8], "big")
        order = sorted(tokens, key=lambda name, places=places: (places[name], name))
        for at, name in enumerate(order):
            found[name] |= {order[at - 1], order[(at + 1) % len(order)]} - {name}
    return {"neighbours": {name: sorted(around) for name, around in sorted(found.items())}}
