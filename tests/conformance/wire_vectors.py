"""Maker of the golden vectors in docs/vectors: scripts/vectors writes them, and a test verifies that they are current.

The expected result of a valid input comes from this project's code (tests/conformance/wire_project.py). The cause of a
refusal is written here by hand.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import msgpack
import msgspec
import numpy as np

from p2pfl.compression.sparse_updates import tag
from p2pfl.protocols.membership import checkpoint
from p2pfl.protocols.membership.invitation import (
    Begin,
    Begun,
    Invitation,
    Join,
    Joined,
    JoinRefused,
    Look,
    Offered,
    Request,
    Rest,
    encode_admission,
    encode_join,
    pack_word,
)
from p2pfl.protocols.membership.log import Membership
from p2pfl.protocols.mqtt import link as link_handshake
from p2pfl.protocols.mqtt import reliable_stream, transport
from p2pfl.protocols.mqtt.packets import Sealing
from p2pfl.protocols.mqtt.reliable_stream import CHUNK, ReliableStream
from p2pfl.protocols.transports import handshake
from p2pfl.protocols.transports.certificates import make_certificate
from p2pfl.protocols.wire import messages as m
from p2pfl.protocols.wire.envelope import EARLIER, EMPTY, VERSION, FrameSigner, Payload
from p2pfl.protocols.wire.payload import encode_extras
from tests.conformance import wire_vectors_checkpoint
from tests.conformance.wire_keys import KEYS, SEEDS
from tests.conformance.wire_making import (
    ADDED,
    ADMISSION,
    AGREED,
    ALICE,
    BOB,
    CAROL,
    DAVE,
    FILE,
    ID,
    IN,
    INITIAL,
    LAYOUT,
    LOG,
    MALLORY,
    SHAPES,
    SUCCESSOR,
    TENSORS,
    Vectors,
    federation,
    flipped,
    grown,
    pack,
    seeded_randomness,
    signed_file,
)
from tests.conformance.wire_vectors_committee import (
    WRONG_COMMITTEE_MESSAGES,
    certificate_vectors,
    committee_messages,
    committee_vectors_of_logs,
    group_vectors,
)
from tests.conformance.wire_vectors_coordination import WRONG_MESSAGES, coordination_messages, coordination_vectors
from tests.conformance.wire_vectors_edges import edge_vectors_of_members
from tests.conformance.wire_vectors_models import (
    codec_vectors,
    difference_vectors,
    extras_vectors,
    quantised_vectors,
    update_vectors,
)
from tests.conformance.wire_vectors_rings import ring_vectors_of_logs
from tests.conformance.wire_vectors_sums import WRONG_SUM_MESSAGES, sum_messages, sum_vectors_of_members
from tests.support.weak_keys import NOT_CANONICAL, SMALL_ORDER, TWINS, forged

FOLDER = Path(__file__).parents[2] / "docs" / "vectors"


# The federation file


def federation_vectors() -> Vectors:
    v = Vectors("Layouts, federation files, and what follows from them for an introduction.")
    v.good("two tensors", "layout", trained=8, tensors=TENSORS)
    v.good("one value without dimensions, frozen", "layout", trained=0, tensors=[["scale", []]])
    v.good("names in UTF-8", "layout", trained=3, tensors=[["größe", [1]], ["λ.0", [2, 1]]])
    v.good("a federation file", "federation file", text=FILE.data.decode())
    text, content = FILE.data.decode(), FILE.data.decode().rpartition("# signature")[0]
    v.good(
        "a signature by hand over another text",
        "federation file",
        text=signed_file(content.replace("# A p2pfl", "# Our p2pfl")),
    )
    refused = [
        ("a changed byte", "wrong signature", "rounds were changed", text.replace("rounds = 5", "rounds = 6")),
        ("another signature", "wrong signature", "signed by another key", signed_file(content, MALLORY)),
        ("no signature", "malformed", "the last line is missing", content),
        ("an upper-case signature", "malformed", "digits are 0-9a-f", upper(text)),
        ("no line feed at the end", "malformed", "the last line does not end", text[:-1]),
        ("something after the signature", "malformed", "the signature is not the last line", text + "\n"),
        ("no admission key", "malformed", "no line names it", signed_file("name = 'x'\nnonce = ''\n")),
        ("no TOML", "malformed", "signed, but cannot be read", signed_file(content + "= 1\n")),
    ]
    key = f'admission = "{ADMISSION.public.hex()}"\n'
    refused += [
        ("a key in a table", "malformed", "admission is not on top", signed_file(f'name = "x"\nnonce = ""\n[a]\n{key}')),
        (
            "a key in a text",
            "malformed",
            "the line is part of a string",
            signed_file(f'a = """\n{key}"""\nname = "x"\nnonce = ""\n'),
        ),
        ("no nonce", "malformed", "nonce is missing", signed_file(f'{key}name = "x"\n')),
        ("a nonce that is a number", "malformed", "nonce is no string", signed_file(f'{key}name = "x"\nnonce = 1\n')),
        ("a name with a blank", "malformed", "no name", signed_file(f'{key}name = "x y"\nnonce = ""\n')),
        ("a name of 65 characters", "malformed", "no name", signed_file(f'{key}name = "{"x" * 65}"\nnonce = ""\n')),
        ("no name", "malformed", "name is missing", signed_file(f'{key}nonce = ""\n')),
    ]
    refused.append(("a key of small order", "wrong signature", "no signature holds with it", file_with_weak_key()))
    for name, cause, why, wrong in refused:
        v.bad(name, "federation file", cause, why, text=wrong)
    v.good("of 65,536 bytes", "federation file", **filled(content, 65_536))
    v.bad("too long", "federation file", "wrong length", "65,537 bytes", **filled(content, 65_537))
    for name, changes in {
        "everyone with everyone, synchronous": {},
        "edges, asynchronous, adaptive, patience": {
            "edges": [["bob", "carol"], ["alice", "bob"]],
            "mode": "asynchronous",
            "adaptive": True,
            "patience": 3,
            "deadline": 2.5,
            "codec": {"name": "top-k", "share": 0.25},
        },
        "values of all types": {
            "codec": {"name": "int8"},
            "task": {"name": "my.module:task", "flag": True, "list": [1, 2.5], "table": {"a": "b'c"}, "long": "x" * 300},
        },
        "values of 200 and 201 characters, and a long key": {
            "policy": {"name": "dac", "whole": "x" * 198, "cut": "x" * 199, "k" * 70: 1}
        },
    }.items():
        v.good(name, "agreed", text=federation(**changes).data.decode(), trained=8, tensors=TENSORS)
    agreed = v.vectors[-4]["expect"]["agreed"]
    text = federation(policy={"name": "fedpref"}).data.decode()
    v.good("a coordinated policy", "agreed", text=text, trained=8, tensors=TENSORS, coordinated=True)
    text = federation(greatest_epsilon=8.0, greatest_delta=1e-5).data.decode()
    v.good("a privacy budget is demanded", "agreed", text=text, trained=8, tensors=TENSORS)
    v.good("the same on both sides", "introduction", ours=agreed, theirs=agreed)
    v.bad("another value", "introduction", "differs", "the seed", ours=agreed, theirs=agreed | {"seed": "8"})
    v.bad(
        "a key more", "introduction", "differs", "policy.k is not set here", ours=agreed, theirs=agreed | {"policy.k": "1"}
    )
    return v


def filled(content, size):
    """Return a signed file of the given size, with line feeds in front that the vector omits."""
    more = size - len(signed_file(content).encode())
    return {"text": signed_file("\n" * more + content).lstrip("\n"), "filled": more}


def file_with_weak_key():
    """Return a file with an admission key of order 8, whose signature a library accepts."""

    def content(k):
        return f'admission = "{SMALL_ORDER[4].hex()}"\nnonce = ""\nname = "x{k}"\n'

    data, signature = forged(SMALL_ORDER[4], lambda k: b"p2pfl federation 1\0" + content(k).encode())
    _, _, signed = data.partition(b"\0")
    return f"{signed.decode()}# signature: {signature.hex()}\n"


def upper(text):
    head, mark, tail = text.rpartition("# signature: ")
    return head + mark + tail.upper()


# The membership log


def entry(log, action="add", name="dave", key=DAVE.public, role="participant", by=ADMISSION, **changes):
    """Return a signed entry that follows a log, with changed fields and additional fields `extra`."""
    extra = changes.pop("extra", [])
    entries = msgspec.msgpack.decode(log.encode(), type=list[msgspec.Raw])
    last = sha256(entries[-1]).digest() if entries else bytes(32)
    fields = {
        "federation": ID,
        "membership_version": log.membership_version + 1,
        "before": last,
        "action": action,
        "name": name,
        "key": key,
        "role": role,
    }
    content = pack([*(fields | changes).values(), *extra])
    return [content, by.sign(b"p2pfl membership 1\0" + content)]


def extension(log, rounds, by=ADMISSION, label=b"p2pfl membership 2\0", **changes):
    """Return a signed extension that follows a log, with changed fields and additional fields `extra`."""
    place = msgspec.msgpack.decode(entry(log)[0])[:3]
    extra = changes.pop("extra", [])
    fields = dict(zip(("federation", "membership_version", "before"), place, strict=True))
    fields |= {"action": "extend", "rounds": rounds}
    content = pack([*(fields | changes).values(), *extra])
    return [content, by.sign(label + content)]


def entries(*some):
    return pack([*some]).hex()


def membership_vectors() -> Vectors:
    v = Vectors("Entries of the membership log, taken in by a node that knows some already.")

    start = {**IN, "rounds": AGREED["rounds"]}

    def good(name, known, new):
        v.good(name, "log", **start, known=known, entries=new)

    good("an empty log", "", pack([]).hex())
    good("three members", "", LOG.encode().hex())
    roles = [("add", "alice", ALICE, "observer"), ("add", "bob", BOB, "coordinator-eligible")]
    good("roles", "", grown(*roles).encode().hex())
    good("a removed member", "", grown(*ADDED, ("remove", "bob", BOB)).encode().hex())
    good("a replaced key, whose member keeps its role", "", grown(*roles, ("replace", "alice", DAVE)).encode().hex())
    handed = grown(*ADDED, ("hand-over", "", SUCCESSOR), ("add", "dave", DAVE))
    good("a hand-over, and an entry by the next admission key", "", handed.encode().hex())
    good("entries that are known already, and new ones", LOG.encode().hex(), handed.encode().hex())
    good("new ones alone", LOG.encode().hex(), handed.after(3, 4 << 20).hex())
    longer = b"\xdd\x00\x00\x00\x03" + b"".join(longer_formats(one) for one in msgpack.unpackb(LOG.encode()))
    good("longer formats around the entries: their hashes are those of the shortest", "", longer.hex())
    good("and an entry after them", longer.hex(), entries(entry(LOG)))
    good(
        "a name that was a removed member's", "", grown(*ADDED, ("remove", "bob", BOB), ("add", "bob", DAVE)).encode().hex()
    )

    unsigned = entry(LOG, by=MALLORY)
    after = {"membership_version": 5, "before": sha256(pack(unsigned)).digest(), "name": "erin", "key": SUCCESSOR.public}
    good("an entry that the signature of the next one covers", LOG.encode().hex(), entries(unsigned, entry(LOG, **after)))

    good("a name of 64 characters", "", grown(("add", "x" * 64, ALICE)).encode().hex())

    def bad(name, new, why, known=LOG, cause="membership", membership_version=3):
        v.bad(
            name,
            "log",
            cause,
            why,
            membership_version,
            **start,
            known=known.encode().hex() if known.membership_version else "",
            entries=new,
        )

    empty = grown()
    bad("not signed by the admission key", entries(entry(LOG, by=MALLORY)), "signed by another key")
    bad(
        "a changed entry",
        entries([flipped(entry(LOG)[0], 30), entry(LOG)[1]]),
        "before differs, and the signature does not hold",
    )
    bad("another federation", entries(entry(LOG, federation=bytes(16))), "names another federation")
    bad("a gap", entries(entry(LOG, membership_version=5)), "entry 5 after 3")
    bad(
        "a false link",
        entries(entry(LOG, before=bytes(32))),
        "before is not the hash of the last entry, and the admission key has signed it",
        cause="membership fork",
    )
    bad("a forged link", entries(entry(LOG, before=bytes(32), by=MALLORY)), "the same, signed by another key")
    longer = grown(*ADDED[:2], ("add", "dave", DAVE), ("add", "erin", MALLORY))
    bad("entries of a longer fork", longer.after(3, 4096).hex(), "they follow another entry 3", cause="membership fork")
    bad(
        "a first entry with a hash",
        entries(entry(empty, before=bytes([1]) * 32)),
        "zeros are before the first",
        known=empty,
        membership_version=0,
    )
    other = grown(*ADDED[:2], ("add", "dave", DAVE))
    bad("a fork", other.encode().hex(), "another entry 3, signed by the admission key", cause="membership fork")
    known, another = (msgpack.unpackb(log.encode())[2] for log in (LOG, other))
    for pair, what in (((known, another), "the known entry and another one"), ((another, known), "the same, turned")):
        bad(f"a pair that proves a fork: {what}", entries(*pair), "entry 3 has two", cause="membership fork")
    bad(
        "a forged fork",
        entries(entry(grown(*ADDED[:2]), by=MALLORY)),
        "another entry 3, not signed by the admission key: no fork, but nothing",
    )
    bad("rolled back", entries(entry(empty)), "another entry 1 than the known one", cause="membership fork")
    bad(
        "a good entry before one that no signature covers",
        entries(entry(LOG), entry(LOG, by=MALLORY, **after | {"before": sha256(pack(entry(LOG))).digest()})),
        "the first counts, and the second is signed by another key",
        membership_version=4,
    )
    second = entry(LOG, **after)
    third = entry(LOG, by=MALLORY, membership_version=6, before=sha256(pack(second)).digest(), name="frank")
    bad("only the last signature covers others", entries(unsigned, second, third), "the last of three does not hold")
    stolen = entry(LOG, by=MALLORY, action="hand-over", name="", key=MALLORY.public)
    next_one = entry(LOG, by=MALLORY, **after | {"before": sha256(pack(stolen)).digest()})
    bad("a forged hand-over, and an entry by its key", entries(stolen, next_one), "only the key in force hands over")
    next_one = entry(LOG, **after | {"before": sha256(pack(stolen)).digest()})
    bad("a forged hand-over, and an entry by the former key", entries(stolen, next_one), "no later signature covers it")
    crossed = entry(LOG, action="hand-over", name="", key=SUCCESSOR.public, by=MALLORY)
    next_one = entry(LOG, by=SUCCESSOR, **after | {"before": sha256(pack(crossed)).digest(), "key": MALLORY.public})
    bad("a forged hand-over to the next key", entries(crossed, next_one), "the next key cannot cover it")
    handed = grown(*ADDED, ("hand-over", "", SUCCESSOR))
    bad(
        "signed by the former admission key",
        entries(entry(handed)),
        "it was handed over",
        known=handed,
        membership_version=4,
    )
    bad(
        "the first of two is taken",
        pack([entry(LOG), entry(LOG, membership_version=6)]).hex(),
        "a gap after the first",
        membership_version=4,
    )
    for name, change, why in [
        ("a name that is taken", {"name": "bob"}, "there is a member named bob"),
        ("no name", {"name": ""}, "a member has a name"),
        ("a name with a blank", {"name": "da ve"}, "no name"),
        ("a name of 65 characters", {"name": "x" * 65}, "no name"),
        ("a key of a member", {"key": BOB.public}, "it was a member's before"),
        ("a member that is none is removed", {"action": "remove"}, "there is no dave"),
        ("a removed member with another key", {"action": "remove", "name": "bob"}, "bob has another key"),
        ("a key for a member that is none", {"action": "replace"}, "there is no dave"),
        (
            "a replacement by the same key",
            {"action": "replace", "name": "bob", "key": BOB.public},
            "it was a member's before",
        ),
        ("a hand-over with a name", {"action": "hand-over"}, "it has no name"),
        (
            "a hand-over to the same key",
            {"action": "hand-over", "name": "", "key": ADMISSION.public},
            "it was the admission key before",
        ),
        ("an unknown action", {"action": "promote"}, "no such action"),
        ("an unknown role", {"role": "server"}, "no such role"),
        ("membership version 0", {"membership_version": 0}, "membership versions begin with 1"),
        ("a short key", {"key": bytes(31)}, "31 bytes"),
        ("a field too many", {"extra": [1]}, "eight fields"),
        ("a membership version that is a float", {"membership_version": 4.0}, "no integer"),
        ("a name in bytes", {"name": b"dave"}, "no text"),
    ]:
        bad(name, entries(entry(LOG, **change)), why)
    for weak in (*SMALL_ORDER, *TWINS, NOT_CANONICAL[-3]):
        kind = "of small order" if weak in SMALL_ORDER else "that is not canonical"
        bad(f"a key {kind}: {weak.hex()}", entries(entry(LOG, key=weak)), "no signature holds with it")
    weak = {"key": SMALL_ORDER[0]}
    bad("a replacement by a key of small order", entries(entry(LOG, action="replace", name="bob", **weak)), "no signature")
    bad("a hand-over to a key of small order", entries(entry(LOG, action="hand-over", name="", **weak)), "no signature")
    gone = grown(*ADDED, ("remove", "bob", BOB))
    bad(
        "a revoked key comes back",
        entries(entry(gone, key=BOB.public)),
        "it was a member's before",
        known=gone,
        membership_version=4,
    )
    extension_vectors(good, bad)
    revocation_vectors(v)
    bad("a signature of 63 bytes", entries([entry(LOG)[0], bytes(63)]), "63 bytes")
    bad("an entry of 513 bytes", entries([bytes(513), bytes(64)]), "more than 512 bytes")
    bad("no array", pack({}).hex(), "a map")
    bad("trailing bytes", entries(entry(LOG)) + "00", "one byte after the array")
    bad("cut off", entries(entry(LOG))[:-2], "the last byte is missing")
    bad("nothing", "", "no value at all")
    return v


def revocation_vectors(v):
    """Add the vectors of proofs that bob's membership has ended, to bob, who knows three entries."""
    base = IN | {"log": LOG.encode().hex(), "key": BOB.public.hex()}
    removed = grown(*ADDED, ("remove", "bob", BOB))
    handed = grown(*ADDED, ("hand-over", "", SUCCESSOR), ("add", "dave", DAVE), ("remove", "bob", BOB))

    def good(name, newer, **changes):
        v.good(name, "revocation", **base | changes, proof=newer.revocation(BOB.public).hex())

    def bad(name, why, proof, **changes):
        data = proof.revocation(BOB.public) if isinstance(proof, Membership) else proof
        v.bad(name, "revocation", "membership", why, **base | changes, proof=data.hex())

    good("a removed member", removed)
    good("a member whose key was replaced", grown(*ADDED, ("replace", "bob", DAVE)))
    good("removed after a hand-over", handed)
    good("removed after a hand-over that is known", handed, log=grown(*ADDED, ("hand-over", "", SUCCESSOR)).encode().hex())
    hand_over, _, end = msgpack.unpackb(handed.after(3, 4 << 20))
    remove = {"action": "remove", "name": "bob", "key": BOB.public}
    bad("no entry", "an empty array", pack([]))
    bad("nothing", "no value at all", b"")
    bad("without the hand-over", "the successor has signed it", pack([end]))
    bad("a hand-over last", "it ends no membership", pack([end, hand_over]))
    bad("an entry that is not a hand-over first", "only hand-overs may precede", pack([entry(LOG), end]))
    bad("forged", "signed by another key", pack([entry(LOG, by=MALLORY, **remove)]))
    bad("another federation", "names another federation", pack([entry(LOG, federation=bytes(16), **remove)]))
    bad("an entry that is known", "entry 3 is known", pack([entry(LOG, membership_version=3, **remove)]))
    bad("another member", "it removes carol", pack([entry(LOG, action="remove", name="carol", key=CAROL.public)]))
    bad("another key of the member", "bob has another key", pack([entry(LOG, action="remove", name="bob", key=DAVE.public)]))
    bad("an extension", "it ends no membership", pack([extension(LOG, 6)]))
    bad("a new member", "it ends no membership", pack([entry(LOG)]))
    bad("too long", "2,049 bytes", removed.revocation(BOB.public).ljust(2049, b"\0"))
    bad("many entries", "17 entries", pack([hand_over] * 16 + [end]))


def extension_vectors(good, bad):
    """Add the vectors of extensions, by two functions that add a vector of the log."""
    known = LOG.encode().hex()
    good("an extension by one round", known, entries(extension(LOG, 6)))
    good("an extension to the most rounds", known, entries(extension(LOG, 1_000_000)))
    longer = grown(*ADDED)
    longer.append_extension(ADMISSION, 8)
    good("an extension, and a member after it", longer.encode().hex(), entries(entry(longer)))
    good("a second extension", longer.encode().hex(), entries(extension(longer, 9)))
    good("an extension that is known already", longer.encode().hex(), longer.after(3, 4 << 20).hex())
    handed = grown(*ADDED, ("hand-over", "", SUCCESSOR))
    good("an extension by the next admission key", handed.encode().hex(), entries(extension(handed, 6, SUCCESSOR)))
    bad("an extension by another key", entries(extension(LOG, 6, MALLORY)), "signed by another key")
    bad(
        "an extension by the former admission key",
        entries(extension(handed, 6)),
        "it was handed over",
        known=handed,
        membership_version=4,
    )
    for rounds, why in ((5, "as many as before"), (4, "fewer"), (0, "none"), (1_000_001, "too many"), (6.0, "no integer")):
        bad(f"an extension to {rounds} rounds", entries(extension(LOG, rounds)), why)
    bad(
        "an extension to fewer rounds than the last one",
        entries(extension(longer, 7)),
        "8 rounds before",
        known=longer,
        membership_version=4,
    )
    bad(
        "an earlier extension again",
        entries(extension(LOG, 7)),
        "another entry 4 than the known one",
        known=longer,
        cause="membership fork",
        membership_version=4,
    )
    bad("an extension with the label of a change", entries(extension(LOG, 6, label=b"p2pfl membership 1\0")), "the label")
    bad("an extension with another action", entries(extension(LOG, 6, action="add")), "a change has seven fields")
    bad("an extension with a field too many", entries(extension(LOG, 6, extra=[1])), "six fields")
    bad("a change with the action of an extension", entries(entry(LOG, action="extend", name="")), "an extension has five")


def longer_formats(one):
    content, signature = one
    return b"\xdc\x00\x02" + b"\xc6" + len(content).to_bytes(4, "big") + content + b"\xc5\x00\x40" + signature


# Admission


def joining_vectors() -> Vectors:
    v = Vectors("Invitations, requests and admissions as words; joining over a link, and the inviter, who decides about it.")
    secret = bytes(range(16))
    token = Invitation(
        ID,
        "example",
        ADMISSION.public,
        ALICE.public,
        ("192.168.1.5:4100", "mqtt://broker:1883"),
        secret,
        1_800_000_000,
        "dave",
    )
    word = token.encode()
    v.good("an invitation", "invitation", text=word)
    v.good("with white space in it", "invitation", text=f"  {word[:40]}\n\t{word[40:]}\r\n")
    pinned = replace(token, addresses=(f"mqtts://broker:8883#sha256={'5e' * 32}",))
    v.good("with a broker and the fingerprint of its certificate", "invitation", text=pinned.encode())
    v.good("without addresses", "invitation", text=replace(token, addresses=(), expires=0).encode())
    fields = msgpack.unpackb(msgspec.msgpack.encode([ID, "example", ADMISSION.public, ALICE.public, [], secret, 0, "dave"]))

    def invitation(**changes):
        names = ("federation", "name", "admission", "inviter", "addresses", "secret", "expires", "member")
        return "p2pfl-invite-" + pack_word(pack([*(dict(zip(names, fields, strict=True)) | changes).values()]))

    def bad(check, name, cause, why, text):
        v.bad(name, check, cause, why, text=text)

    bad("invitation", "a request", "other kind", "another prefix", Request.make(DAVE, "dave"))
    bad(
        "invitation",
        "a mistyped letter",
        "damaged",
        "the four bytes at the end differ",
        word[:30] + ("A" if word[30] != "A" else "B") + word[31:],
    )
    bad("invitation", "cut off", "damaged", "the four bytes at the end differ", word[:-3])
    bad("invitation", "nothing in it", "damaged", "no value", "p2pfl-invite-" + pack_word(b""))
    bad("invitation", "a letter that is none", "damaged", "no base64", word[:-1] + "!")
    bad("invitation", "a field less", "malformed", "seven fields", "p2pfl-invite-" + pack_word(pack(fields[:-1])))
    bad(
        "invitation",
        "trailing bytes",
        "malformed",
        "one byte after the structure",
        "p2pfl-invite-" + pack_word(pack(fields) + b"\0"),
    )
    bad("invitation", "a short secret", "malformed", "15 bytes", invitation(secret=bytes(15)))
    bad("invitation", "nine addresses", "malformed", "at most 8", invitation(addresses=["a:1"] * 9))
    bad("invitation", "a long address", "malformed", "257 characters", invitation(addresses=["a" * 257]))
    longest = {"name": "é" * 64, "addresses": ["a" * 256] * 8, "expires": 2**53}
    v.good("the longest", "invitation", text=invitation(**longest))
    bad("invitation", "after the last second", "malformed", "more than 2^53", invitation(expires=2**53 + 1))
    bad("invitation", "before 1970", "malformed", "expires is less than 0", invitation(expires=-1))
    bad("invitation", "an empty name", "malformed", "1 to 64 characters", invitation(name=""))
    bad("invitation", "for no name", "malformed", "member is no name", invitation(member="da ve"))
    bad("invitation", "of a weak inviter", "malformed", "its key is of small order", invitation(inviter=SMALL_ORDER[4]))
    bad("invitation", "of a weak admission key", "malformed", "it is not canonical", invitation(admission=NOT_CANONICAL[0]))

    v.good("a request", "request", text=Request.make(DAVE, "dave"))
    v.good("a request for another key", "request", text=Request.make(DAVE, "alice", ALICE))
    content = b"p2pfl request 1\0" + DAVE.public + bytes(32) + b"dave"
    mine = DAVE.sign(content)

    def request(*values):
        return "p2pfl-request-" + pack_word(pack([*values]))

    bad("request", "an invitation", "other kind", "another prefix", word)
    bad(
        "request",
        "somebody else's key",
        "wrong signature",
        "not signed with alice's",
        request("dave", ALICE.public, None, mine, None),
    )
    bad("request", "another name", "wrong signature", "signed for dave", request("david", DAVE.public, None, mine, None))
    bad("request", "the old key has not signed", "wrong signature", "one signature of two",
        request("dave", DAVE.public, ALICE.public, DAVE.sign(content[:-36] + ALICE.public + b"dave"), None))  # fmt: skip
    bad("request", "a name with a blank", "malformed", "no name", request("da ve", DAVE.public, None, mine, None))
    bad("request", "a short signature", "malformed", "63 bytes", request("dave", DAVE.public, None, mine[:-1], None))
    bad("request", "nil in place of the key", "malformed", "key is not optional", request("dave", None, None, mine, None))

    for weak in SMALL_ORDER:
        label = b"p2pfl request 1\0" + weak + bytes(32)
        data, signature = forged(weak, lambda k, label=label: label + b"dave%d" % k)
        name = data.removeprefix(label).decode()
        why = "a library takes the signature for one; no secret is needed for it"
        bad("request", f"a key of small order: {weak.hex()}", "wrong signature", why,
            request(name, weak, None, signature, None))  # fmt: skip

    joined = Joined(FILE.data, LOG.encode())
    v.good("an admission", "admission", text=encode_admission(joined))
    bad("admission", "of another kind", "malformed", "refused", "p2pfl-admission-" + pack_word(pack(["refused", "no"])))
    bad(
        "admission",
        "without its kind",
        "malformed",
        "the structure has a kind",
        "p2pfl-admission-" + pack_word(pack([FILE.data, b""])),
    )

    join = encode_join(Join(secret, "dave"))
    v.good("a join", "join", bytes=join.hex())
    for name, why, data in [
        ("of another kind", "hello", pack(["hello"])),
        ("a long name", "65 characters", pack(["join", secret, "x" * 65])),
        ("a secret as text", "no bytes", pack(["join", "x" * 16, "dave"])),
        ("trailing bytes", "one byte more", join + b"\0"),
        ("too long", "4,097 bytes", join + bytes(4097 - len(join))),
        ("nothing", "no value at all", b""),
    ]:
        v.bad(name, "join", "malformed", why, bytes=data.hex())
    look = encode_join(Look(secret, "dave"))
    v.good("a look", "look", bytes=look.hex())
    v.bad("a join as a look", "look", "malformed", "another kind", bytes=join.hex())
    begin = encode_join(Begin(secret, "dave"))
    v.good("a begin", "join", bytes=begin.hex())
    begun = Begun(FILE.data, checkpoint.make(LOG, ADMISSION, ["bob"]))
    v.good("begun", "join answer", bytes=encode_join(begun).hex())
    v.bad("begun with nothing", "join answer", "malformed", "0 bytes", bytes=pack(["begun", FILE.data, b""]).hex())
    most = pack(["begun", FILE.data, bytes(49_153)])
    v.bad("begun with too much", "join answer", "malformed", "49,153 bytes", bytes=most.hex())
    rest = encode_join(Rest(secret, "dave", 3))
    v.good("a rest", "join", bytes=rest.hex())
    v.bad("a rest after nothing", "join", "malformed", "0 entries", bytes=pack(["rest", secret, "dave", 0]).hex())
    v.good("offered", "join answer", bytes=encode_join(Offered(FILE.data, 10)).hex())
    v.bad("offered with a negative number", "join answer", "malformed", "-1", bytes=pack(["offered", FILE.data, -1]).hex())
    v.good("joined", "join answer", bytes=encode_join(joined).hex())
    v.good("refused", "join answer", bytes=encode_join(JoinRefused("invitation expired: ask for another one")).hex())
    v.good("a reason of 256 characters", "join answer", bytes=pack(["refused", "é" * 256]).hex())
    v.bad("a reason of 257 characters", "join answer", "malformed", "at most 256", bytes=pack(["refused", "x" * 257]).hex())
    v.bad("a join in answer", "join answer", "malformed", "another kind", bytes=join.hex())
    v.bad(
        "a file of 65,537 bytes",
        "join answer",
        "malformed",
        "at most 65,536",
        bytes=pack(["joined", bytes(65_537), b""]).hex(),
    )
    inviter_vectors(v, secret, join, look)
    return v


def inviter_vectors(v, secret, join, look):
    note = {"name": "dave", "role": "participant", "reuse_name": False, "expires": 1000, "expired": False, "used_by": None}

    def noted(**changes):
        return {"secrets": {secret.hex(): note | changes}}

    used = noted(used_by=DAVE.public.hex())
    base = {"now": 1000, **noted(), "file": FILE.data.decode(), "log": LOG.encode().hex()}
    base |= {"key": DAVE.public.hex(), "join": join.hex()}
    v.good("lets in", "inviter", **base)
    with_dave = grown(*ADDED, ("add", "dave", DAVE)).encode().hex()
    v.good("again, the first answer was lost", "inviter", **base | used | {"log": with_dave, "now": 5000})
    v.good("used, but nobody was let in before the power failed", "inviter", **base | used)
    v.good("an observer", "inviter", **base | noted(role="observer"))
    gone = grown(*ADDED, ("remove", "carol", CAROL)).encode().hex()
    as_carol = {"log": gone, "join": encode_join(Join(secret, "carol")).hex()}
    v.good("a former member's name, which is allowed", "inviter", **base | as_carol | noted(name="carol", reuse_name=True))

    v.good("shows the file, and lets nobody in", "inviter", **base | {"join": look.hex()})
    v.good("shows it to a member that asks again", "inviter", **base | used | {"log": with_dave, "join": look.hex()})

    v.good("lets in with a begin", "inviter", **base | {"join": encode_join(Begin(secret, "dave")).hex()})
    rest = {"join": encode_join(Rest(secret, "dave", 3)).hex()}
    v.good("sends a member the entries after the third", "inviter", **base | used | {"log": with_dave} | rest)

    def bad(name, cause, why, **changes):
        v.bad(name, "inviter", cause, why, **base | changes)

    bad("the rest for a key that has not joined", "malformed", "it is no member", **rest)
    bad("the rest for another key", "invitation used", "good for one node", **used | rest, key=MALLORY.public.hex())

    bad("an unknown secret", "invitation unknown", "it was never given", secrets={})
    bad("used by another key", "invitation used", "good for one node", **used, key=MALLORY.public.hex())
    bad("expired", "invitation expired", "a second too late", now=1001)
    bad("seen expired", "invitation expired", "the clock was set back since", **noted(expired=True))
    bad("another name", "other name", "it is for dave", join=encode_join(Join(secret, "david")).hex())
    as_alice = noted(name="alice") | {"join": encode_join(Join(secret, "alice")).hex()}
    bad("a name that is taken", "name taken", "there is an alice", **as_alice)
    bad("a former member's name", "name taken", "there was a carol", **as_carol, **noted(name="carol"))
    bad("a member's key", "known key", "carol's", key=CAROL.public.hex())
    bad("a revoked key", "known key", "it was carol's", key=CAROL.public.hex(), log=gone)
    bad("a name with a blank", "malformed", "no name", join=encode_join(Join(secret, "da ve")).hex())
    bad("a look with an expired secret", "invitation expired", "a second too late", now=1001, join=look.hex())
    bad("a look with an unknown secret", "invitation unknown", "it was never given", secrets={}, join=look.hex())
    bad("no join", "malformed", "a hello", join=pack(["hello"]).hex())


# The link over TLS


class NoSecret:
    """Identity with the key of order 1, for which a library accepts signatures without a secret."""

    public = SMALL_ORDER[0]

    @staticmethod
    def sign(data):
        return SMALL_ORDER[0] + bytes(32)


def tls_vectors() -> Vectors:
    v = Vectors("What the two ends of a TLS connection show and say, from the certificate to the session.")
    with seeded_randomness("tls"):
        certificate = make_certificate(BOB)
        challenge = handshake.challenge(LOG)
        proof, _ = handshake.prove(ALICE, LOG, challenge, BOB.public, certificate, joining=False)
    v.good("the key that was dialled", "certificate", dialled=BOB.public.hex(), certificate=certificate.hex())
    v.bad(
        "another key", "certificate", "wrong key", "it is bob's", dialled=ALICE.public.hex(), certificate=certificate.hex()
    )
    v.bad(
        "no certificate",
        "certificate",
        "wrong key",
        "a byte is missing",
        dialled=BOB.public.hex(),
        certificate=certificate[1:].hex(),
    )

    steps = [challenge, proof, handshake.Accepted(), handshake.Refused("stranger", "no member at membership version 3")]
    frames = [handshake.encode(one) for one in steps]
    framed = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    v.good("one after the other", "frames", limit=4096, bytes=framed.hex())
    v.good("the last one is not complete", "frames", limit=4096, bytes=(framed + b"\0\0\0\5abcd").hex())
    v.good("a frame of the greatest length", "frames", limit=8, bytes=(b"\0\0\0\x08" + bytes(8)).hex())
    v.bad("an empty frame", "frames", "malformed", "a length of 0", limit=4096, bytes=bytes(4).hex())
    v.bad(
        "a long frame",
        "frames",
        "malformed",
        "4,097 bytes are announced",
        limit=4096,
        bytes=(b"\0\0\x10\x01" + bytes(9)).hex(),
    )
    v.bad("a very long frame", "frames", "malformed", "4 GiB are announced", limit=4096, bytes="ffffffff")
    for name, frame in zip(("challenge", "proof", "accepted", "refused"), frames, strict=True):
        v.good(name, "handshake step", bytes=frame.hex())
    v.good("the longest words", "handshake step", bytes=pack(["refused", "é" * 64, "é" * 256]).hex())
    most = ["proof", 1, ID, bytes(32), bytes(32), False, bytes(3500), bytes(64)]
    v.good("as many entries as there may be", "handshake step", bytes=pack(most).hex())
    removed = grown(*ADDED, ("remove", "alice", ALICE)).revocation(ALICE.public)
    v.good("revoked", "handshake step", bytes=handshake.encode(handshake.Revoked("no member", removed)).hex())
    v.good("the longest proof", "handshake step", bytes=pack(["revoked", "é" * 256, bytes(2048)]).hex())
    v.good("longer formats", "handshake step", bytes=(b"\xdc\x00\x01\xd9\x08accepted").hex())
    for name, why, data in [
        ("an unknown kind", "no step", pack(["resume"])),
        ("a field more", "accepted has none", pack(["accepted", 1])),
        ("a field less", "no membership version", pack(["challenge", 1, bytes(32)])),
        ("a short nonce", "31 bytes", pack(["challenge", 1, bytes(31), 0])),
        ("a version that is too large", "2^32", pack(["challenge", 2**32, bytes(32), 0])),
        ("joining as a number", "1 is no boolean", pack(["proof", 1, ID, bytes(32), bytes(32), 1, b"", bytes(64)])),
        ("many entries", "3,501 bytes", pack(["proof", 1, ID, bytes(32), bytes(32), False, bytes(3501), bytes(64)])),
        ("a cause of 65 characters", "at most 64", pack(["refused", "x" * 65, ""])),
        ("a detail of 257 characters", "at most 256", pack(["refused", "", "x" * 257])),
        ("a proof of 2,049 bytes", "at most 2,048", pack(["revoked", "", bytes(2049)])),
        ("text that is no UTF-8", "0xff", b"\x93\xa7refused\xa1\xff\xa0"),
        ("trailing bytes", "one byte more", frames[2] + b"\0"),
        ("a map", "steps are arrays", pack({"accepted": 1})),
        ("nested", "an array too deep", b"\x91" * 4000),
        ("a large array", "4 GiB of elements are announced", b"\xdd\xff\xff\xff\xff"),
        ("too long", "4,097 bytes", frames[2] + bytes(4097 - len(frames[2]))),
    ]:
        v.bad(name, "handshake step", "malformed", why, bytes=data.hex())
    v.good("a challenge", "challenge", bytes=frames[0].hex())
    v.bad("another version", "challenge", "version", "2", bytes=pack(["challenge", 2, bytes(32), 0]).hex())
    v.bad("another step", "challenge", "malformed", "accepted, before anything was proven", bytes=frames[2].hex())
    proof_vectors(v, certificate, challenge)
    return v


def proof_vectors(v, certificate, challenge):
    said = handshake.encode(challenge)
    base = IN | {"log": LOG.encode().hex(), "invites": False, "server": BOB.public.hex(), "certificate": certificate.hex()}
    base["challenge"] = said.hex()

    def proof(identity=ALICE, log=LOG, joining=False, server=BOB.public, shown=certificate, answers=challenge):
        with seeded_randomness("proof"):
            return handshake.prove(identity, log, answers, server, shown, joining=joining)[0]

    def good(name, proof, **changes):
        v.good(name, "proof", **base | {"proof": handshake.encode(proof).hex()} | changes)

    def bad(name, cause, why, proof, **changes):
        data = proof if isinstance(proof, bytes) else handshake.encode(proof)
        v.bad(name, "proof", cause, why, **base | {"proof": data.hex()} | changes)

    newer = grown(*ADDED, ("add", "dave", DAVE))
    good("a member", proof())
    good("a new member, with news of itself", proof(DAVE, newer))
    good("a member, with news that nobody needs", proof(ALICE, newer))
    good("one who wants to join", proof(DAVE, joining=True), invites=True)
    bad("joining at a node that does not invite", "not inviting", "it has no admission key", proof(DAVE, joining=True))
    bad("a stranger", "stranger", "dave is no member", proof(DAVE))
    gone = grown(*ADDED, ("remove", "alice", ALICE))
    bad("a revoked key", "revoked", "alice was removed", proof(), log=gone.encode().hex())
    bad("another version", "version", "2", msgspec.structs.replace(proof(), version=2))
    bad(
        "another federation",
        "other federation",
        "its first byte differs",
        msgspec.structs.replace(proof(), federation=flipped(ID, 0)),
    )
    bad(
        "a changed signature",
        "wrong proof",
        "its last byte",
        msgspec.structs.replace(proof(), signature=flipped(proof().signature)),
    )
    bad("a changed nonce", "wrong proof", "another one was signed", msgspec.structs.replace(proof(), nonce=bytes(32)))
    bad(
        "joining was not signed",
        "wrong proof",
        "signed as a member's",
        msgspec.structs.replace(proof(), joining=True),
        invites=True,
    )
    bad("of a key of small order", "wrong proof", "no signature holds with it", proof(NoSecret, joining=True), invites=True)
    bad("meant for another server", "wrong proof", "carol's key was signed", proof(server=CAROL.public))
    bad("another certificate", "wrong proof", "somebody stands between", proof(shown=flipped(certificate)))
    other = handshake.Challenge(1, bytes(32), 3)
    bad("answers another challenge", "wrong proof", "recorded before", proof(answers=other))
    forged = pack([entry(LOG, by=MALLORY)])
    bad(
        "forged news of itself",
        "membership",
        "not signed by the admission key",
        msgspec.structs.replace(proof(DAVE), entries=forged),
    )
    fork = grown(*ADDED[:2], ("add", "dave", DAVE)).encode()
    bad("news from another log", "membership fork", "another entry 3", msgspec.structs.replace(proof(DAVE), entries=fork))
    bad("no proof", "malformed", "accepted", handshake.Accepted())
    bad("trailing bytes", "malformed", "one byte more", handshake.encode(proof()) + b"\0")


# The link through a broker


def broker_vectors() -> Vectors:
    v = Vectors("Links through an MQTT broker: packets of the handshake, sealed packets, presence.")
    v.good(
        "where alice publishes for bob", "topic", federation=ID.hex(), sender=ALICE.public.hex(), recipient=BOB.public.hex()
    )
    handshake_packet_vectors(v)
    packet_vectors(v)
    presence_vectors(v)
    return v


def handshake_packet_vectors(v):
    link = bytes(range(16))

    def packet(number, content):
        return link_handshake.make_packet(link, number, content)

    def good(name, *packets):
        v.good(name, "handshake packets", link=link.hex(), packets=[packet.hex() for packet in packets])

    def bad(name, cause, why, packet):
        v.bad(name, "handshake packets", cause, why, link=link.hex(), packets=[packet.hex()])

    first, second = packet(0, b"a ClientHello"), packet(1, b"the end of the TLS handshake")
    most = link_handshake.LIMIT - link_handshake.HEADER.size - link_handshake.CHECKSUM
    good("two messages", first, second)
    good("each of them twice", first, first, second, first, second)
    good("the second one comes too early", second, first)
    good("a message of the greatest length", packet(0, bytes(most)))
    bad("a changed byte", "wrong seal", "its last byte", flipped(first))
    bad("another number", "wrong seal", "the checksum covers it", flipped(first, 17))
    bad("another link", "unknown session", "its number is another one", flipped(first, 1))
    bad("no message", "malformed", "34 bytes", first[:34])
    bad("too long", "malformed", "8,193 bytes", packet(0, bytes(most + 1)))
    bad("an unknown type", "malformed", "9", b"\x09" + first[1:])


def packet_vectors(v):
    key, link = bytes(range(32)), bytes(range(16))

    def sender():
        return ReliableStream(Sealing(key, bytes(32)), link, 0, 0.0)

    def data(number, size, index, content, seal=None):
        header = reliable_stream.DATA_HEADER.pack(1, link, number, size, index)
        return header + (seal or Sealing(key, key)).seal(reliable_stream.DATA, number, content, header)

    def control(number, content):
        header = reliable_stream.CONTROL_HEADER.pack(2, link, number)
        return header + Sealing(key, key).seal(reliable_stream.CONTROL, number, content, header)

    def whole(number, content):
        return data(number, len(content), 0, content + sha256(content).digest())

    base = {"link": link.hex(), "key": key.hex(), "limit": 65_856}

    def good(name, *packets, **more):
        v.good(name, "packets", **base, packets=[p if isinstance(p, str) else p.hex() for p in packets], **more)

    def bad(name, cause, why, *packets, **changes):
        v.bad(name, "packets", cause, why, **base | {"packets": [packet.hex() for packet in packets]} | changes)

    stream = sender()
    stream.send([b"first"])
    stream.send([b"second ", b"frame"])
    first, second = stream.packet_out(0.0), stream.packet_out(0.0)
    good("two frames", first, second)
    good("the second one comes first, and twice", second, first, second)
    good("one is missing", second, whole(3, b"fourth"))
    good("16 beyond the missing one is passed over", whole(16, b"early"))
    good("15 beyond it is kept", whole(15, b"early"))
    good("a control packet, and an older one that is passed over", control(1, bytes(13)), control(0, b"\2" + bytes(12)))
    good("the link is closed", sender().closing())
    large = sender()
    large.send([bytes(i % 251 for i in range(CHUNK + 100))])
    start, end = large.packet_out(0.0), large.packet_out(0.0)
    v.good(
        "a frame of two chunks",
        "packets",
        **base | {"limit": 1 << 20},
        packets=[sha256(start).hexdigest(), end.hex()],
        pattern=CHUNK + 100,
    )
    v.good("a frame of the greatest size", "packets", **base | {"limit": 5}, packets=[first.hex()])
    bad("a changed seal", "wrong seal", "its last byte", flipped(first))
    bad("a repetition with a changed seal", "wrong seal", "its last byte", first, flipped(first))
    bad("a changed chunk", "wrong seal", "its first byte", flipped(first, 33))
    bad("another number", "wrong seal", "what stands before the seal is sealed too", flipped(first, 24))
    bad("another frame size", "wrong seal", "what stands before the seal is sealed too", flipped(first, 28))
    bad(
        "another key",
        "wrong seal",
        "sealed for the other direction",
        data(0, 5, 0, b"first", Sealing(bytes(32), key)),
    )
    bad("data as control", "wrong seal", "types have numbers of their own", b"\2" + first[1:])
    bad("another link", "unknown session", "its number is another one", b"\1" + bytes(16) + first[17:])
    bad("no seal", "malformed", "33 bytes", first[:33])
    bad("an unknown type", "malformed", "7", b"\7" + first[1:])
    bad("a long frame", "too large", "65,857 bytes are announced", data(0, 65_857, 0, bytes(65_857 // 100)))
    bad("a wrong SHA-256", "malformed", "not that of the frame", data(0, 5, 0, b"first" + bytes(32)))
    bad("no SHA-256", "malformed", "it follows the last chunk", data(0, 5, 0, b"first"))
    bad("a chunk of another length", "malformed", "4 bytes of 5", data(0, 5, 0, b"firs" + sha256(b"firs").digest()))
    bad("another index", "malformed", "chunks count from 0", data(0, 5, 1, b"first" + sha256(b"first").digest()))
    bad("a short control packet", "malformed", "12 bytes", control(0, bytes(12)))


def presence_vectors(v):
    def describe(identity=ALICE, by=None, **changes):
        fields = {
            "federation": ID,
            "key": identity.public,
            "incarnation": 2,
            "sequence": 5,
            "addresses": ("tcp://192.168.1.5:4100",),
        }
        return transport.sign(by or identity, transport.Presence(**fields | {"online": True} | changes))

    base = IN | {"log": LOG.encode().hex(), "key": ALICE.public.hex(), "before": []}

    def good(name, packet, **changes):
        v.good(name, "presence", **base | {"packet": packet.hex()} | changes)

    def bad(name, cause, why, packet, **changes):
        v.bad(name, "presence", cause, why, **base | {"packet": packet.hex()} | changes)

    before = [describe().hex()]
    good("a member is there", describe())
    good("it has left", describe(addresses=(), online=False, sequence=6), before=before)
    good("the same again", describe(), before=before)
    good("as many addresses as there may be", describe(addresses=("a" * 256,) * 8))
    good("started anew", describe(incarnation=3, sequence=1), before=before)
    bad("an old one", "replay", "sequence 4 after 5", describe(sequence=4), before=before)
    bad("of an earlier incarnation", "replay", "incarnation 1 after 2", describe(incarnation=1, sequence=9), before=before)
    bad("another federation", "other federation", "zeros", describe(federation=bytes(16)))
    bad("in another's place", "other sender", "bob's", describe(BOB))
    bad("a stranger", "stranger", "dave is no member", describe(DAVE), key=DAVE.public.hex())
    gone = grown(*ADDED, ("remove", "alice", ALICE))
    bad("a revoked key", "revoked", "alice was removed", describe(), log=gone.encode().hex())
    bad("signed by another key", "wrong signature", "mallory's", describe(by=MALLORY))
    bad("a changed byte", "wrong signature", "online", flipped(describe()))
    bad("nine addresses", "malformed", "at most 8", describe(addresses=("tcp://a:1",) * 9))
    bad("a long address", "malformed", "257 characters", describe(addresses=("a" * 257,)))
    bad("trailing bytes", "malformed", "one byte more", describe() + b"\0")
    bad("no presence", "malformed", "64 bytes", describe()[:64])
    bad("too long", "malformed", "4,097 bytes", describe() + bytes(4097 - len(describe())))


# mDNS


def mdns_vectors() -> Vectors:
    v = Vectors("TXT records by which nodes find each other on the local network.")
    own, fed = b"id=" + ALICE.public.hex().encode(), b"fed=" + ID.hex().encode()

    def record(*some):
        return b"".join(bytes([len(one)]) + one for one in some).hex()

    v.good("as a node announces itself", "txt", bytes=record(own, fed))
    v.good("in another order, with another entry", "txt", bytes=record(b"x=1", fed, b"", own))
    v.good(
        "names and digits in upper case",
        "txt",
        bytes=record(b"ID=" + ALICE.public.hex().upper().encode(), b"Fed=" + fed[4:]),
    )
    v.good("the first of two counts", "txt", bytes=record(own, fed, b"id=" + BOB.public.hex().encode()))
    rest = 512 - len(own) - len(fed) - 4
    v.good("of 512 bytes", "txt", bytes=record(own, fed, b"x" * 255, b"y" * (rest - 255)))
    for name, why, data in [
        ("no federation", "fed is missing", record(own)),
        ("a short key", "62 digits", record(own[:-2], fed)),
        ("white space", "no digit", record(own[:-1] + b" ", fed)),
        ("cut off", "an entry is longer than what is left", record(own, fed)[:-2]),
        ("cut off after both", "an entry of one byte of which none is left", record(own, fed) + "01"),
        ("too long", "513 bytes", record(own, fed, b"x" * 255, b"y" * (rest - 254))),
        ("nothing", "no entry", ""),
    ]:
        v.bad(name, "txt", "malformed", why, bytes=data)
    return v


# The envelope

SESSION = bytes(range(100, 116))
MOST = 2**32 - 1
TERMS = m.HelloParameters(
    {"seed": "7", "rounds": "5"}, {"n_samples": 50, "group": "a", "share": 0.5, "new": True}, 3, False, 3
)


def every_message() -> list[tuple[m.Message, Payload]]:
    """Return a message of every kind, with its payload."""
    model = Payload.of(np.arange(8, dtype="<f4").tobytes(), encode_extras({"x": np.ones(2, np.float32)}))
    return [
        (m.Hello(), Payload.of(TERMS.encode())),
        (m.Welcome(), Payload.of(TERMS.encode())),
        (m.Get(1, 3, "trained"), EMPTY),
        (m.Get(MOST, MOST, "prepared", tag(INITIAL)), EMPTY),
        (m.ModelUpdate(1, 3, "trained", 50, False, 0.25), model),
        (m.ModelUpdate(MOST, MOST, "prepared", MOST, True, 1e300, bytes(8)), model),
        (m.NotAvailable(1, 3, "gone"), EMPTY),
        (m.NotAvailable(1, 3, "not allowed"), EMPTY),
        (m.NotAvailable(1, 3, "busy"), EMPTY),
        (m.NotAvailable(1, 3, "nothing yet"), EMPTY),
        (m.Score(2, 3), Payload.of(bytes(32))),
        (m.Scored(2, 0.75), EMPTY),
        (m.Scored(2, float("nan")), EMPTY),
        (m.RoundReached(4), EMPTY),
        (m.Ping(7), EMPTY),
        (m.Pong(7, 4), EMPTY),
        (m.PingRequest(8, CAROL.public), EMPTY),
        (m.IndirectAck(8, CAROL.public), EMPTY),
        (m.Entries(3), Payload.of(LOG.encode())),
        (m.Bye(5, False), EMPTY),
        (m.Bye(5, True), EMPTY),
        (m.Receipts(), Payload.of(bytes(320))),
        (m.Equivocation(), Payload.of(bytes(640))),
        (m.Conflict(), Payload.of(bytes(320))),
        *coordination_messages(),
    ]


def envelope_vectors() -> Vectors:
    v = Vectors("Frames over an introduced link: every kind of message, and every way in which a frame is refused.")
    base = {"federation": ID.hex(), "me": BOB.public.hex(), "members": [key.public.hex() for key in (ALICE, BOB, CAROL)]}
    base |= {"limit": 70_000, "session": SESSION.hex(), "link": ALICE.public.hex(), "before": []}

    def frame(message=None, payload=EMPTY, incarnation=2, number=1, by=ALICE, to=BOB, of=ID, session=SESSION):
        signer = FrameSigner(by, of, LAYOUT, incarnation, sequence=number - 1)
        return b"".join(bytes(p) for p in signer.seal(message or m.Ping(9), to.public, payload, session))

    def good(name, frame, **changes):
        v.good(name, "frame", **base | {"frame": frame.hex()} | changes)

    def bad(name, cause, why, frame, **changes):
        v.bad(name, "frame", cause, why, **base | {"frame": frame.hex()} | changes)

    for message, payload in every_message():
        good(" ".join(str(field) for field in plain_fields(message)), frame(message, payload))
    good("the greatest numbers", frame(incarnation=MOST, number=2**63 - 1))
    good("a number of more than 32 bits", frame(number=2**32))
    good("an update without base, a get without known", raw_frame(["get", 1, 3, "trained"]))
    good("the same in full", raw_frame(["model_update", 1, 3, "merged", 5, True, 1], Payload.of(bytes(32))))
    good("no age", raw_frame(["model_update", 1, 3, "merged", 5, True, 0.0], Payload.of(bytes(32))))
    quarter = pack(["model_update", 1, 3, "merged", 5, True, 0])[:-1] + b"\xca\x3e\x80\0\0"
    good("an age as float 32", raw_frame(None, Payload.of(bytes(32)), body=quarter))
    good(
        "longer formats",
        raw_frame(["round_reached", 1], version=b"\xcc\x06", body=b"\xdc\x00\x02\xd9\x0dround_reached\xce\x00\x00\x00\x01"),
    )
    good("padding that is not zero", raw_frame(["round_reached", 1], pad=b"x"))
    good("another generation", raw_frame(["round_reached", 1], generation=2**31))
    good("another layout", raw_frame(["round_reached", 1], layout=bytes(16)))
    good("an earlier one that had not come", frame(number=1), before=[frame(number=1024).hex()])
    good("started anew", frame(incarnation=3), before=[frame(number=1000).hex()])
    good("the largest payload", frame(m.Score(1, 1), Payload.of(bytes(32))), limit=32)

    bad("short", "wrong length", "319 bytes", frame()[:-1])
    bad(
        "a payload that is too large",
        "wrong length",
        "33 bytes more than an envelope",
        frame(m.Score(1, 1), Payload.of(bytes(33))),
        limit=32,
    )
    bad("the version before", "version", "5", b"\x9d\5" + frame()[2:])
    bad(
        "a whole frame of the version before",
        "version",
        "5, as it was signed then",
        raw_frame(["round_reached", 1], version=b"\5", label=b"p2pfl envelope 5\0"),
    )
    bad("a later version with other fields", "version", "7, and an array of 14", b"\x9e\7" + frame()[2:])
    bad(
        "signed as the version before did",
        "wrong signature",
        "its label",
        raw_frame(["round_reached", 1], label=b"p2pfl envelope 5\0"),
    )
    bad("version 127 with most other fields", "version", "and an array of 15", b"\x9f\x7f" + frame()[2:])
    bad("version 0 without fields", "version", "and an array of 0", b"\x90\0" + frame()[2:])
    bad("a map in place of the version", "malformed", "0x80 is no small number", b"\x9d\x80" + frame()[2:])
    bad("a map in place of the header", "malformed", "0x8f is no array", b"\x8f\6" + frame()[2:])
    bad("text in place of the header", "malformed", "0xa0 is no array", b"\xa0\6" + frame()[2:])
    bad(
        "another version in a longer format",
        "version",
        "7, in two bytes",
        raw_frame(["round_reached", 1], version=b"\xcc\x07"),
    )
    bad("another federation", "other federation", "zeros", frame(of=bytes(16)))
    bad("another recipient", "other recipient", "carol", frame(to=CAROL))
    bad("a stranger", "stranger", "dave is no member", frame(by=DAVE), link=DAVE.public.hex())
    bad("passed on", "other sender", "signed by carol, sent by alice", frame(by=CAROL))
    bad("of another link", "other session", "recorded before", frame(session=bytes(16)))
    bad(
        "a payload of another length",
        "wrong length",
        "the last byte is missing",
        frame(m.Score(1, 1), Payload.of(bytes(32)))[:-1],
    )
    bad("a payload where there is none", "wrong length", "a ping has none", frame(m.Ping(1), Payload.of(b"x")))
    bad("again", "replay", "the same frame", frame(), before=[frame().hex()])
    bad("too old to tell", "replay", "1,024 behind", frame(number=1), before=[frame(number=1025).hex()])
    bad(
        "of an earlier incarnation",
        "replay",
        "incarnation 1 after 2",
        frame(incarnation=1, number=9),
        before=[frame().hex()],
    )
    bad("a changed signature", "wrong signature", "its first byte", flipped(frame(), 256))
    bad("a signature that is not reduced", "wrong signature", "the scalar is greater than the order", not_reduced(frame()))
    bad("signed by another key", "wrong signature", "mallory's", raw_frame(["round_reached", 1], by=MALLORY))
    bad("a changed header", "wrong signature", "its last byte, of the padding", flipped(frame(), 255))
    bad("a changed payload", "wrong signature", "its last byte", flipped(frame(m.Score(1, 1), Payload.of(bytes(32)))))
    bad(
        "another hash",
        "wrong signature",
        "signed, but not that of the payload",
        raw_frame(["score", 1, 1], Payload((b"abc",), 3, bytes(32))),
    )
    bad("without a label", "wrong signature", "a signature of something else", raw_frame(["round_reached", 1], label=b""))
    for name, why, body in [
        ("an unknown kind", "no such message", ["fetch", 1]),
        ("no kind", "an empty array", []),
        ("a map", "messages are arrays", {"round_reached": 1}),
        ("a field less", "no stage", ["get", 1, 3]),
        ("a field more", "round_reached has one", ["round_reached", 1, 2]),
        ("a field more than the optional ones", "get has four", ["get", 1, 3, "trained", b"", b""]),
        ("a negative number", "-1", ["round_reached", -1]),
        ("a number of 33 bits", "2^32", ["round_reached", 2**32]),
        ("a float for an integer", "1.0", ["round_reached", 1.0]),
        ("a boolean for an integer", "true", ["round_reached", True]),
        ("text for bytes", "a key as text", ["ping_request", 1, "k" * 32]),
        ("bytes for text", "a stage as bytes", ["get", 1, 3, b"trained"]),
        ("an unknown stage", "final", ["get", 1, 3, "final"]),
        ("an unknown reason", "later", ["not_available", 1, 3, "later"]),
        ("nine bytes for a tag", "at most 8", ["get", 1, 3, "trained", bytes(9)]),
        ("nil", "no tag", ["get", 1, 3, "trained", None]),
        ("a negative age", "-1", ["model_update", 1, 3, "trained", 5, False, -1.0]),
        ("an infinite age", "inf", ["model_update", 1, 3, "trained", 5, False, float("inf")]),
        ("an age that is no number", "NaN", ["model_update", 1, 3, "trained", 5, False, float("nan")]),
        ("an age as text", "no number", ["model_update", 1, 3, "trained", 5, False, "1"]),
        ("an age as a boolean", "no number", ["model_update", 1, 3, "trained", 5, False, True]),
        ("final as a number", "1", ["model_update", 1, 3, "trained", 5, 1, 0.0]),
        ("a short key", "31 bytes", ["indirect_ack", 1, bytes(31)]),
        *WRONG_MESSAGES,
    ]:
        bad(name, "malformed", why, raw_frame(body))
    bad("an extension type", "malformed", "in place of a round", raw_frame(None, body=b"\x92\xa4have\xd4\x01\x00"))
    bad("a kind that is no UTF-8", "malformed", "0xff", raw_frame(None, body=b"\x92\xa1\xff\x01"))
    bad("an array that is announced only", "malformed", "4 GiB of elements", raw_frame(None, body=b"\xdd\xff\xff\xff\xff"))
    bad("nested", "malformed", "arrays in arrays", raw_frame(None, body=b"\x91" * 60))
    bad("a header that ends early", "malformed", "one byte after it", raw_frame(["round_reached", 1], short=1))
    bad("zeros", "malformed", "no header", bytes(320))
    conflict_vectors(v, frame)
    report_vectors(v)
    return v


def envelope_7_vectors() -> Vectors:
    v = Vectors("Frames of version 7, where only some kinds of messages are signed, and their evidence.", VERSION)
    base = {"federation": ID.hex(), "me": BOB.public.hex(), "members": [key.public.hex() for key in (ALICE, BOB, CAROL)]}
    base |= {"limit": 70_000, "session": SESSION.hex(), "link": ALICE.public.hex(), "version": 7, "before": []}
    hello = m.Hello(), Payload.of(TERMS.encode())

    def frame(message=None, payload=EMPTY, incarnation=2, number=1, by=ALICE, to=BOB, session=SESSION, version=7):
        signer = FrameSigner(by, ID, LAYOUT, incarnation, sequence=number - 1)
        return b"".join(bytes(p) for p in signer.seal(message or m.Ping(9), to.public, payload, session, version))

    def good(name, frame, **changes):
        v.good(name, "frame", **base | {"frame": frame.hex()} | changes)

    def bad(name, cause, why, frame, **changes):
        v.bad(name, "frame", cause, why, **base | {"frame": frame.hex()} | changes)

    for message, payload in [*every_message(), *sum_messages()]:
        good(" ".join(str(field) for field in plain_fields(message)), frame(message, payload))
    for body, payload in [
        (["get_fragments", 1, 3, "trained", "strided", 3, b"\5"], EMPTY),
        (["fragment_update", 1, 3, "trained", 50, False, 0.25, "random", 2, 1], Payload.of(bytes(16))),
    ]:
        zeros = {"signature": bytes(64)} if body[0] == "get_fragments" else {}
        good(f"a {body[0]}", raw_frame(body, payload, version=b"\7", label=b"p2pfl envelope 7\0", **zeros))
    for body, payload, zeros in [
        (["group_mean", 1, 4, 3, 8], Payload.of(bytes(32)), {}),
        (["signed_vote", 3, 8], Payload.of(bytes(64)), {"signature": bytes(64)}),
        (["which_term", 3, 8], EMPTY, {"signature": bytes(64)}),
    ]:
        label = {"label": b"p2pfl envelope 7\0"}
        good(f"a {body[0]}", raw_frame(body, payload, version=b"\7", **label, **zeros))
    good("longer formats", raw_frame(["pong", 1, 2], version=b"\xcc\7", signature=bytes(64)))
    good("a signed frame after an unsigned one", frame(*hello, number=2), before=[frame().hex()])
    bad("a frame of version 6", "version", "the link has 7", frame(version=6))
    bad("a frame of version 7", "version", "the link has 6", frame(), version=6)
    bad("a version to come", "version", "8", b"\x9d\x08" + frame()[2:])
    model = m.ModelUpdate(1, 9, "trained", 50, False, 0.5), Payload.of(b"1")
    for name, (message, payload) in {"a hello": hello, "a model": model, "a vote": (m.Vote(3, 2, False), EMPTY)}.items():
        sealed = frame(message, payload)
        bad(f"{name} without a signature", "not signed", "zeros", sealed[:256] + bytes(64) + sealed[320:])
    bad("a signature that was changed", "wrong signature", "its first byte", flipped(frame(*hello), 256))
    bad("a signature of version 6", "wrong signature", "its label", raw_frame(["hello"], version=b"\7"))
    bad("a signed ping", "malformed", "it has no signature", raw_frame(["ping", 9], version=b"\7"))
    bad("a ping with one bit of a signature", "malformed", "its first byte", flipped(frame(), 256))
    bad("passed on", "other sender", "a ping of carol, sent by alice", frame(by=CAROL))
    bad("of another link", "other session", "zeros", frame(session=bytes(16)))
    bad("to another recipient", "other recipient", "carol", frame(to=CAROL))
    bad("again", "replay", "the same ping", frame(), before=[frame().hex()])
    bad("of an earlier incarnation", "replay", "1 after 2", frame(incarnation=1, number=9), before=[frame().hex()])
    bad("a changed payload", "wrong signature", "its last byte", flipped(frame(m.Score(1, 1), Payload.of(bytes(32)))))

    def signed(content=b"1", version=7, **changes):
        """Return the header and the signature of a model of alice."""
        update = m.ModelUpdate(1, 9, "trained", 50, False, 0.5)
        return frame(update, Payload.of(content), version=version, **changes)[:320]

    both = {"federation": ID.hex()}
    v.good("two models of version 7", "equivocation", **both, proof=(signed() + signed(b"2")).hex())
    v.good("models of both versions", "equivocation", **both, proof=(signed() + signed(b"2", 6)).hex())
    v.bad(
        "one model in both",
        "equivocation",
        "malformed",
        "no contradiction",
        **both,
        proof=(signed() + signed(b"1", 6)).hex(),
    )
    other = raw_frame(["model_update", 1, 9, "trained", 50, False, 0.5, b""], Payload.of(b"2"), version=b"\5")[:320]
    v.bad("a model of version 5", "equivocation", "version", "5", **both, proof=(signed() + other).hex())
    v.good("receipts of both versions", "receipts", **both, payload=(signed() + signed(b"1", 6)).hex())
    v.bad("a receipt of version 5", "receipts", "version", "5", **both, payload=other.hex())
    asked = raw_frame(["missing_entries", MOST], version=b"\7", signature=bytes(64))
    good("missing_entries", asked)
    for body, payload in [(["carried", 7], Payload.of(bytes(327))), (["carried", MOST], EMPTY)]:
        good(f"carried {body[1]}", raw_frame(body, payload, version=b"\7", signature=bytes(64)))

    def carried(names, receipts, more=0):
        route = pack(names)
        return {"federation": ID.hex(), "route": len(route) + more, "payload": (route + receipts).hex()}

    v.good("a way of two", "carried", **carried(["bob", "carol"], signed()))
    v.good("the end of a way", "carried", **carried([], signed() + signed(b"1", 6)))
    v.good("the longest way", "carried", **carried(["n" * 64] * 16, signed() * 8))
    for name, cause, why, given in [
        ("a way of 17", "malformed", "at most 16", carried(["n"] * 17, signed())),
        ("a name of 65 characters", "malformed", "at most 64", carried(["n" * 65], signed())),
        ("a name without characters", "malformed", "at least 1", carried([""], signed())),
        ("no way", "malformed", "no array", carried([], signed(), more=-1)),
        ("a way that is longer", "malformed", "a byte of the receipt", carried(["bob"], signed(), more=1)),
        ("no receipt on a way", "wrong length", "at least 1", carried(["bob"], b"")),
        ("nine receipts on a way", "wrong length", "at most 8", carried(["bob"], signed() * 9)),
        ("a receipt that is no model, on a way", "malformed", "a ping", carried(["bob"], frame()[:320])),
    ]:
        v.bad(name, "carried", cause, why, **given)
    node = {"key": ALICE.public.hex(), "incarnation": 2, "sessions": [SESSION.hex()]}
    v.good("a later start", "conflict", **both, **node, evidence=(frame(*hello, incarnation=3)[:320]).hex())
    v.good("the own start", "conflict", **both, **node, evidence=(frame(*hello)[:320]).hex())
    v.bad("a ping", "conflict", "wrong signature", "it has none", **both, **node, evidence=frame(incarnation=3)[:320].hex())
    return v


def fragment_vectors() -> Vectors:
    v = Vectors("Parts of models: how models are divided, the messages that ask for parts and carry them, and proofs.")
    base = {"federation": ID.hex(), "me": BOB.public.hex(), "members": [key.public.hex() for key in (ALICE, BOB, CAROL)]}
    base |= {"limit": 70_000, "session": SESSION.hex(), "link": ALICE.public.hex(), "before": []}
    values = Payload.of(np.arange(4, dtype="<f4").tobytes())
    for name, body, payload in [
        ("a request for parts 0 and 2", ["get_fragments", 1, 3, "trained", "strided", 3, b"\5"], EMPTY),
        ("the longest request", ["get_fragments", MOST, MOST, "prepared", "contiguous", 128, b"\xff" * 16], EMPTY),
        ("a part", ["fragment_update", 1, 3, "trained", 50, False, 0.25, "random", 2, 1], values),
        ("the longest part", ["fragment_update", MOST, MOST, "prepared", MOST, True, 1e300, "contiguous", 128, 127], values),
    ]:
        v.good(name, "frame", **base, frame=raw_frame(body, payload).hex())
    for name, why, body in [
        ("no parts", "0", ["get_fragments", 1, 3, "trained", "strided", 0, b"\1"]),
        ("too many parts", "129", ["get_fragments", 1, 3, "trained", "strided", 129, b"\1"]),
        ("an unknown division", "halves", ["get_fragments", 1, 3, "trained", "halves", 2, b"\1"]),
        ("nothing wanted", "no byte", ["get_fragments", 1, 3, "trained", "strided", 3, b""]),
        ("too much wanted", "17 bytes", ["get_fragments", 1, 3, "trained", "strided", 128, bytes(17)]),
        ("a part beyond all", "128", ["fragment_update", 1, 3, "trained", 50, False, 0.0, "strided", 128, 128]),
        ("a part without a number", "a field less", ["fragment_update", 1, 3, "trained", 50, False, 0.0, "strided", 3]),
        ("a part with a base", "a field more", ["fragment_update", 1, 3, "trained", 50, False, 0.0, "strided", 3, 1, b""]),
    ]:
        v.bad(name, "frame", "malformed", why, **base, frame=raw_frame(body).hex())
    request = raw_frame(["get_fragments", 1, 3, "trained", "strided", 3, b"\1"], values).hex()
    v.bad("a request with a payload", "frame", "wrong length", "it has none", **base, frame=request)

    def model(content=b"1", division="random", parts=16, part=3, n_samples=50):
        """Return the header and the signature of a part of a model of alice."""
        body = ["fragment_update", 1, 9, "trained", n_samples, False, 0.5, division, parts, part]
        return raw_frame(body, Payload.of(content))[:320]

    whole = raw_frame(["model_update", 1, 9, "trained", 50, False, 0.5, b""], Payload.of(b"2"))[:320]
    both = {"federation": ID.hex()}
    v.good("two contents of one part", "equivocation", **both, proof=(model() + model(b"2")).hex())
    v.good("two numbers of samples with one part", "equivocation", **both, proof=(model() + model(n_samples=51)).hex())
    for name, why, second in [
        ("parts 3 and 4", "no contradiction", model(b"2", part=4)),
        ("parts of two divisions", "other values", model(b"2", division="strided")),
        ("parts of 16 and of 17", "other values", model(b"2", parts=17)),
        ("a part and a whole model", "other values", whole),
    ]:
        v.bad(name, "equivocation", "malformed", why, **both, proof=(model() + second).hex())
    v.good("a part and a whole model", "receipts", **both, payload=(model() + whole).hex())
    evidence = raw_frame(["fragment_update", 1, 9, "trained", 50, False, 0.5, "random", 16, 3], Payload.of(b"1"))[:320]
    node = {"key": ALICE.public.hex(), "incarnation": 1, "sessions": []}
    v.good("a part of a later start", "conflict", **both, **node, evidence=evidence.hex())
    division_vectors(v)
    agreed = {"text": federation().data.decode(), "trained": 8, "tensors": TENSORS}
    v.good("a policy that fetches fragments", "agreed", **agreed, fragments=True)
    return v


def secure_sum_vectors() -> Vectors:
    v = Vectors("What members and the coordinator of a secure sum send and compute, and what they refuse.")
    base = {"federation": ID.hex(), "me": BOB.public.hex(), "members": [key.public.hex() for key in (ALICE, BOB, CAROL)]}
    base |= {"limit": 70_000, "session": SESSION.hex(), "link": ALICE.public.hex(), "before": []}
    for message, payload in sum_messages():
        body = msgspec.to_builtins(message)
        v.good(f"a {body[0]} of {body[-1]}, in round {body[2]}", "frame", **base, frame=raw_frame(body, payload).hex())
    for name, why, body in WRONG_SUM_MESSAGES:
        v.bad(name, "frame", "malformed", why, **base, frame=raw_frame(body).hex())
    sum_vectors_of_members(v)
    for name, changes in (("by default", {}), ("with a threshold", {"secure_threshold": 4})):
        text = federation(robust="none", secure_sums=True, **changes).data.decode()
        given = {"text": text, "trained": 8, "tensors": TENSORS, "coordinated": True}
        v.good(f"a federation with secure sums {name}", "agreed", **given)
    return v


def edge_vectors() -> Vectors:
    v = Vectors("The noise that two nodes add with opposite signs, and what they tell each other of it.")
    edge_vectors_of_members(v)
    return v


def committee_vectors() -> Vectors:
    v = Vectors("The committee that a log names, certificates of its terms, and the messages that only it needs.")
    base = {"federation": ID.hex(), "me": BOB.public.hex(), "members": [key.public.hex() for key in (ALICE, BOB, CAROL)]}
    base |= {"limit": 70_000, "session": SESSION.hex(), "link": ALICE.public.hex(), "before": []}
    for message, payload in committee_messages():
        body = msgspec.to_builtins(message)
        v.good(f"a {body[0]}", "frame", **base, frame=raw_frame(body, payload).hex())
    for name, why, body in WRONG_COMMITTEE_MESSAGES:
        v.bad(name, "frame", "malformed", why, **base, frame=raw_frame(body).hex())
    committee_vectors_of_logs(v)
    certificate_vectors(v)
    group_vectors(v)
    text = federation(committee=7).data.decode()
    given = {"text": text, "trained": 8, "tensors": TENSORS, "coordinated": True}
    v.good("a federation with a committee of seven", "agreed", **given)
    text = federation(committee=7, group_size=100, robust="none").data.decode()
    v.good("a federation with groups", "agreed", **given | {"text": text})
    return v


def ring_vectors() -> Vectors:
    v = Vectors("Neighbours by the rules of federations with many members.")
    ring_vectors_of_logs(v)
    for name, topology in (
        ("rings", {"name": "rings"}),
        ("changing rings", {"name": "changing-rings", "degree": 6}),
        ("another graph in each round", {"name": "base-k", "degree": 2}),
    ):
        given = {"text": federation(topology=topology).data.decode(), "trained": 8, "tensors": TENSORS}
        v.good(f"a federation with {name}", "agreed", **given)
    return v


def division_vectors(v):
    """Divisions, and the acceptance of parts."""
    base = {"tensors": SHAPES, "seed": 7}
    for division, parts in (("contiguous", 3), ("strided", 3), ("random", 3), ("random", 8), ("layers", 2)):
        v.good(f"{division} {parts}", "division", **base, division=division, parts=parts)
    v.good("another seed", "division", tensors=SHAPES, seed=8, division="random", parts=3)
    v.bad("more parts than values", "division", "malformed", "9 of 8 values", **base, division="random", parts=9)
    v.bad("other layers", "division", "malformed", "3, but 2 tensors", **base, division="layers", parts=3)
    strided = base | {"division": "strided", "parts": 3}
    v.good("parts 0 and 2", "wanted", **strided, wanted="05")
    v.good("part 1 and a byte of zeros", "wanted", **strided, wanted="0200")
    v.bad("part 3 of 3", "wanted", "malformed", "parts 0 to 2", **strided, wanted="09")
    v.bad("no part", "wanted", "malformed", "a byte of zeros", **strided, wanted="00")

    asked = {"kind": "get_fragments", "request": 7, "round": 3, "stage": "trained"}
    asked |= {"division": "strided", "parts": 3, "wanted": "05"}
    message = {"request": 7, "round": 3, "stage": "trained", "n_samples": 50, "final": False, "age": 0.5}
    message |= {"division": "strided", "parts": 3, "part": 2}
    payload = np.array([1.0, -2.0], "<f4").tobytes()
    given = base | {"asynchronous": False, "asked": asked, "public_info": {"n_samples": 50}, "norm": 1.0}
    given |= {"message": message, "payload": payload.hex()}

    def bad(name, cause, why, **changes):
        v.bad(name, "fragment", cause, why, **given | changes)

    v.good("what was asked for", "fragment", **given)
    newest = given | {"message": message | {"round": 5}, "asynchronous": True}
    v.good("a part of the newest model, asynchronous", "fragment", **newest)
    bad("another part", "not asked for", "0 and 2 are wanted", message=message | {"part": 1})
    bad("a part of another division", "not asked for", "random", message=message | {"division": "random"})
    bad("a part of fewer", "not asked for", "2 and 3", message=message | {"parts": 2, "part": 0})
    bad("a part of more than all values", "malformed", "9 of 8 values", message=message | {"parts": 9})
    bad("a part of another round", "not asked for", "2 and 3", message=message | {"round": 2})
    bad("a part of another stage", "not asked for", "merged", message=message | {"stage": "merged"})
    get = {"kind": "get", "request": 7, "round": 3, "stage": "trained"}
    bad("a part where a model was asked for", "not asked for", "get", asked=get)
    bad("a part where a loss was asked for", "not asked for", "score", asked=get | {"kind": "score"})
    bad("a part with other samples", "differs", "51 and 50", message=message | {"n_samples": 51})
    bad("a short part", "wrong length", "4 of 8 bytes", payload=payload[:4].hex())
    bad("a long part", "wrong length", "12 of 8 bytes", payload=(payload + bytes(4)).hex())
    bad("a part with a value that is not finite", "not finite", "NaN", payload=np.array([1, np.nan], "<f4").tobytes().hex())
    bad("a part with too large a norm", "too large", "3000", payload=np.array([3000, 0], "<f4").tobytes().hex())


def conflict_vectors(v, frame):
    base = {"federation": ID.hex(), "key": ALICE.public.hex(), "incarnation": 2, "sessions": [SESSION.hex()]}

    def good(name, evidence):
        v.good(name, "conflict", **base, evidence=evidence.hex())

    def bad(name, cause, why, evidence):
        v.bad(name, "conflict", cause, why, **base, evidence=evidence.hex())

    good("a frame of a later start", frame(incarnation=3)[:320])
    good("a frame of an earlier start", frame(incarnation=1)[:320])
    good("an own frame", frame()[:320])
    good("a frame of the same start over another link", frame(session=bytes(16))[:320])
    model = m.ModelUpdate(1, 9, "trained", 50, False, 0.0)
    good("a frame and a model of a later start", frame(incarnation=3)[:320] + frame(model, incarnation=3)[:320])
    good("a frame of a later start, and a model of an earlier one", frame(incarnation=3)[:320] + frame(model)[:320])
    bad("evidence that is longer", "wrong length", "321 bytes", frame()[:320] + b"x")
    bad("evidence of another federation", "other federation", "zeros", frame(incarnation=3, of=bytes(16))[:320])
    bad("evidence of another sender", "wrong signature", "bob's", frame(incarnation=3, by=BOB, to=ALICE)[:320])
    bad("evidence that was changed", "wrong signature", "its last byte", flipped(frame(incarnation=3)[:320]))
    bad("evidence that is no header", "malformed", "zeros", bytes(320))
    bad("evidence of which half is another sender's", "wrong signature", "bob's", frame()[:320] + frame(by=BOB)[:320])


def report_vectors(v):
    """Receipts and proofs."""
    base = {"federation": ID.hex()}

    def model(content=b"1", round=9, stage="trained", n_samples=50, base=b"", **changes):
        """Return the header and the signature of a model of alice."""
        body = ["model_update", 1, round, stage, n_samples, False, 0.5, base]
        return raw_frame(body, Payload.of(content), **changes)[:320]

    one, other = model(), model(b"2")
    v.good("two models of one round", "equivocation", **base, proof=(one + other).hex())
    v.good("the same, the other way round", "equivocation", **base, proof=(other + one).hex())
    v.good("two numbers of samples", "equivocation", **base, proof=(one + model(n_samples=51)).hex())
    for name, cause, why, second in [
        ("the same frame twice", "malformed", "no contradiction", one),
        ("the same model to another member", "malformed", "another request", model(by=ALICE, pad=b"\1")),
        ("models of two rounds", "malformed", "9 and 10", model(b"2", round=10)),
        ("models of two stages", "malformed", "trained and merged", model(b"2", stage="merged")),
        ("models of two generations", "malformed", "0 and 1", model(b"2", generation=1)),
        ("a model and a difference", "malformed", "a base", model(b"2", base=bytes(8))),
        ("a frame without a model", "malformed", "a ping", raw_frame(["ping", 1])[:320]),
        ("a model with another signature", "wrong signature", "signed by bob", model(b"2", by=BOB)),
        ("a changed model", "wrong signature", "its last byte", flipped(other)),
        ("a proof that is longer", "wrong length", "641 bytes", other + b"x"),
        ("half a proof", "wrong length", "320 bytes", b""),
    ]:
        v.bad(name, "equivocation", cause, why, **base, proof=(one + second).hex())
    v.bad(
        "a proof of another federation",
        "equivocation",
        "other federation",
        "zeros",
        federation="00" * 16,
        proof=(one + other).hex(),
    )
    v.good("one receipt", "receipts", **base, payload=one.hex())
    v.good("eight receipts", "receipts", **base, payload=b"".join(model(round=k) for k in range(8)).hex())
    v.bad("nine receipts", "receipts", "wrong length", "at most 8", **base, payload=(one * 9).hex())
    v.bad("no receipt", "receipts", "wrong length", "at least 1", **base, payload="")
    v.bad("part of a receipt", "receipts", "wrong length", "321 bytes", **base, payload=(one + b"x").hex())
    v.bad("a receipt of a difference", "receipts", "malformed", "a base", **base, payload=model(base=bytes(8)).hex())


def plain_fields(message):
    values = msgspec.structs.astuple(message)
    return [message.__struct_config__.tag, *(value.hex() if isinstance(value, bytes) else value for value in values)]


def raw_frame(
    message,
    payload=EMPTY,
    *,
    by=ALICE,
    version=b"\x06",
    body=None,
    pad=b"\0",
    generation=0,
    layout=LAYOUT,
    short=0,
    label=None,
    signature=None,
):
    """Return a frame from alice to bob, assembled by hand and signed by `by`."""
    fields = [ID, ALICE.public, BOB.public, SESSION, 2, 1, generation, layout, payload.size, payload.digest]
    start = b"\x9d" + version + b"".join(pack(field) for field in fields) + (pack(message) if body is None else body)
    left = 256 - len(start) - 2 - short
    header = start + b"\xc4" + bytes([left]) + pad * left + b"\0" * short
    assert len(header) == 256
    signed = (b"p2pfl envelope 6\0" if label is None else label) + sha256(header).digest() + payload.digest
    return header + (by.sign(signed) if signature is None else signature) + b"".join(payload.parts)


ORDER = 2**252 + 27742317777372353535851937790883648493


def not_reduced(frame):
    """Add the group order to the scalar of a signature, which some implementations of Ed25519 accept."""
    scalar = int.from_bytes(frame[288:320], "little") + ORDER
    return frame[:288] + scalar.to_bytes(32, "little") + frame[320:]


# Payloads


def payload_vectors() -> Vectors:
    v = Vectors("Terms, models in every codec, differences, extras, and which update is accepted.")
    terms_vectors(v)
    codec_vectors(v)
    difference_vectors(v)
    quantised_vectors(v)
    extras_vectors(v)
    update_vectors(v)
    return v


def terms_vectors(v):
    full = {"agreed": {"seed": "7"}, "public_info": {"n_samples": 50}, "round": 0, "stopped": False, "membership_version": 2}
    v.good("terms", "terms", bytes=TERMS.encode().hex())
    v.good(
        "without a membership version",
        "terms",
        bytes=pack({k: full[k] for k in ("stopped", "round", "public_info", "agreed")}).hex(),
    )
    limits = {
        "agreed": {f"{k:064}": "é" * 256 for k in range(2)},
        "public_info": {"é" * 64: 2**53, "least": -(2**53), "x": -0.5},
    }
    limits["public_info"]["text"] = "é" * 256
    v.good("the longest", "terms", bytes=pack(full | limits).hex())
    many = {"agreed": {str(k): "" for k in range(128)}, "public_info": {str(k): k for k in range(32)}}
    v.good("as many as there may be", "terms", bytes=pack(full | many).hex())
    claim = {"public_info": {"n_samples": 50, "privacy.epsilon": 8.0, "privacy.delta": 1e-5}}
    v.good("a claim of a privacy budget", "terms", bytes=pack(full | claim).hex())
    for name, why, value in [
        ("an unknown key", "more", full | {"more": 1}),
        ("a missing key", "stopped", {k: full[k] for k in ("agreed", "public_info", "round")}),
        ("a long key", "65 characters", full | {"agreed": {"x" * 65: ""}}),
        ("an empty key", "1 to 64 characters", full | {"public_info": {"": 1}}),
        ("a long text", "257 characters", full | {"agreed": {"a": "x" * 257}}),
        ("a number that is agreed on", "text only", full | {"agreed": {"seed": 7}}),
        ("129 that are agreed on", "at most 128", full | {"agreed": {str(k): "" for k in range(129)}}),
        ("33 facts", "at most 32", full | {"public_info": {str(k): 0 for k in range(33)}}),
        ("a list as a fact", "no such type", full | {"public_info": {"a": [1]}}),
        ("nil as a fact", "no such type", full | {"public_info": {"a": None}}),
        ("bytes as a fact", "no such type", full | {"public_info": {"a": b"x"}}),
        ("an infinite fact", "inf", full | {"public_info": {"a": float("inf")}}),
        ("a long text as a fact", "257 characters", full | {"public_info": {"a": "x" * 257}}),
        ("a small fact", "less than -2^53", full | {"public_info": {"a": -(2**53) - 1}}),
        ("a large fact", "more than 2^53", full | {"public_info": {"a": 2**53 + 1}}),
        ("a negative round", "-1", full | {"round": -1}),
        ("an array", "terms are a map", list(full.values())),
    ]:
        v.bad(name, "terms", "malformed", why, bytes=pack(value).hex())
    v.bad("trailing bytes", "terms", "malformed", "one byte more", bytes=(TERMS.encode() + b"\0").hex())
    v.bad("nothing", "terms", "malformed", "no value at all", bytes="")
    v.bad("too long", "terms", "malformed", "65,537 bytes", bytes=terms_of(65_537, full).hex())


def terms_of(size, full):
    """Return terms of the given size, valid in all other respects."""
    agreed = {f"{k:064}": "" for k in range(128)}
    left = size - len(pack(full | {"agreed": agreed}))
    texts = ["é" * (k // 2) + "x" * (k % 2) for k in range(511, -1, -1)]
    for key in agreed:
        agreed[key] = next(text for text in texts if len(pack(text)) - 1 <= left)
        left -= len(pack(agreed[key])) - 1
    assert left == 0
    return pack(full | {"agreed": agreed})


def key_file() -> str:
    keys = {name: {"seed": SEEDS[name].hex(), "public": KEYS[name].public.hex()} for name in KEYS}
    about = "Keys of the golden vectors: Ed25519, each made from its seed as RFC 8032 has it. They protect nothing."
    return json.dumps({"about": about, "protocol": EARLIER, "keys": keys}, indent=1) + "\n"


def merkle_vectors() -> Vectors:
    v = Vectors("Inclusion proofs in Merkle trees, and checkpoints of the membership log with proofs of members.")
    wire_vectors_checkpoint.tree_vectors(v)
    wire_vectors_checkpoint.checkpoint_vectors(v)
    return v


MAKERS: dict[str, Callable[[], Vectors]] = {
    "federation": federation_vectors,
    "membership": membership_vectors,
    "merkle": merkle_vectors,
    "joining": joining_vectors,
    "tls": tls_vectors,
    "broker": broker_vectors,
    "mdns": mdns_vectors,
    "envelope": envelope_vectors,
    "envelope_7": envelope_7_vectors,
    "payload": payload_vectors,
    "coordination": coordination_vectors,
    "fragments": fragment_vectors,
    "secure_sums": secure_sum_vectors,
    "committee": committee_vectors,
    "rings": ring_vectors,
    "correlated_noise": edge_vectors,
}


def make() -> dict[str, str]:
    """Return the text of every file by name."""
    return {"keys.json": key_file()} | {f"{name}.json": maker().text() for name, maker in MAKERS.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in make().items():
        (FOLDER / file).write_text(text)
