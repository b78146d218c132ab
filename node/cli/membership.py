"""Commands for membership: invite, join, request, admit, revoke.

Tokens, requests and admissions are texts that users pass on. A command reads each from a file, from standard input, or
from its argument; other users of the machine can see arguments, so for tokens that is warned of.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pfl._util.console import add_command, add_output, print_answer
from p2pfl.errors import ConfigurationError
from p2pfl.node.cli.options import add_folder, add_role, add_unlock, agrees, confirm, default_folder, unlock
from p2pfl.protocols.membership.invitation import ADMISSION, INVITATION, REQUEST

if TYPE_CHECKING:
    from p2pfl.node.federation.agreement import Agreement
    from p2pfl.node.folder.config import NodeConfig


STANDARD_INPUT = "-"
LONGEST = 16 << 20  # maximum characters of an admission
_KINDS = {
    INVITATION: "a token of `p2pfl-node invite`",
    REQUEST: "a request of `p2pfl-node request`",
    ADMISSION: "an admission of `p2pfl-node admit`",
}


def add_commands(commands: Any) -> None:
    """Add the commands to a parser."""
    _add_invite(commands)
    _add_join(commands)
    _add_request(commands)
    _add_admit(commands)
    _add_revoke(commands)


def _add_invite(commands: Any) -> None:
    invite = add_command(
        commands,
        "invite",
        "print a token with which one node can join while this node runs",
        "p2pfl-node invite alice bob >bob.token",
        "p2pfl-node invite alice bob --minutes 60 --role observer >bob.token",
    )
    add_folder(invite)
    invite.add_argument("name", metavar="NAME", help="name of the new node, as in its node.toml")
    member = invite.add_argument_group("new member")
    add_role(member)
    token = invite.add_argument_group("token")
    token.add_argument("--minutes", type=float, default=15.0, help="minutes until the token expires (default: 15)")
    token.add_argument(
        "--address", dest="addresses", action="append", default=[], metavar="HOST:PORT",
        help="address at which the new node can reach this node, or the URL of a broker; can be repeated (default:"
        " the addresses in node.toml, or those of this machine)",
    )  # fmt: skip
    add_unlock(invite.add_argument_group("admission key"))
    add_output(invite)
    invite.set_defaults(do=_invite)


def _add_join(commands: Any) -> None:
    join = add_command(
        commands,
        "join",
        "join a federation with a token or an admission file",
        "p2pfl-node join bob <bob.token",
        "p2pfl-node join bob bob.admission --yes",
    )
    add_folder(join)
    join.add_argument(
        "token", nargs="?", metavar="TOKEN",
        help="file with the token of invite, or the admission file of admit (default: standard input)",
    )  # fmt: skip
    approval = join.add_argument_group("approval")
    approval.add_argument(
        "--yes", action="store_true",
        help="accept the federation's options of task and policy without a question, even if node.toml has others",
    )  # fmt: skip
    add_output(join)
    join.set_defaults(do=_join)


def _add_request(commands: Any) -> None:
    request = add_command(
        commands,
        "request",
        "print a line with which the owner of the admission key can admit this node",
        "p2pfl-node request bob >bob.request",
        "p2pfl-node request bob --new-key >bob.request",
    )
    add_folder(request)
    key = request.add_argument_group("key")
    key.add_argument("--new-key", action="store_true", help="create a new key, and request that it replaces the present one")
    add_output(request)
    request.set_defaults(do=_request)


def _add_admit(commands: Any) -> None:
    admit = add_command(
        commands,
        "admit",
        "admit the node that printed a request, and write its admission file",
        "p2pfl-node admit alice bob.request --out bob.admission",
    )
    add_folder(admit)
    admit.add_argument(
        "request", nargs="?", metavar="REQUEST",
        help="file with the line of request, or the line itself (default: standard input)",
    )  # fmt: skip
    member = admit.add_argument_group("new member")
    add_role(member, None)
    output = add_output(admit)
    output.add_argument(
        "--out", type=Path, required=True, metavar="FILE",
        help="admission file to write, with which the new member joins; it contains no secret",
    )  # fmt: skip
    add_unlock(admit.add_argument_group("admission key"))
    admit.set_defaults(do=_admit)


def _add_revoke(commands: Any) -> None:
    revoke = add_command(
        commands,
        "revoke",
        "end the membership of a node; running nodes learn of it within seconds",
        "p2pfl-node revoke alice bob",
    )
    add_folder(revoke)
    revoke.add_argument("name", metavar="NAME", help="name of the member")
    approval = revoke.add_argument_group("approval")
    approval.add_argument(
        "--yes", action="store_true", help="revoke this node itself, or the last member, without a question"
    )
    add_unlock(revoke.add_argument_group("admission key"))
    add_output(revoke)
    revoke.set_defaults(do=_revoke)


def _invite(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import invitations, membership_changes
    from p2pfl.node.runtime import invite

    if not options.minutes > 0:
        raise ConfigurationError(f"--minutes must be more than 0, got {options.minutes:g}")
    addresses = invite.addresses(options.folder, options.addresses)
    invite.check_can_run(options.folder)
    invitation = invitations.invite(
        options.folder,
        options.name,
        addresses,
        options.role,
        options.minutes,
        now=time.time(),
        passphrase=unlock(options),
        reuse_name=options.reuse_name,
    )
    if not options.json:
        print(
            f"token for one node named {options.name}: it expires in {options.minutes:g}"
            f" minute{'s' * (options.minutes != 1)}, and until then this node"
            f" must run and be reachable {invite.describe_addresses(addresses)}; keep it secret, because anyone who has it"
            " can join",
            file=sys.stderr,
        )
        if note := membership_changes.many_note(options.folder, 1):
            print(f"note: {note}", file=sys.stderr)
    token = invitation.encode()
    answer = {"token": token, "name": options.name, "role": options.role, "addresses": addresses}
    print_answer(options, token, answer | {"federation": invitation.name, "expires": invitation.expires})
    return 0


def _join(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import join as joining

    folder, word = _folder_and_source(options.folder, options.token)
    token = read(word, (INVITATION, ADMISSION))
    if word.startswith(INVITATION):
        print("warning: other users of this machine can see arguments; pass the token on standard input", file=sys.stderr)
    name = joining.join(folder, token, partial(_approve, options, folder), notify=partial(print, file=sys.stderr))
    print_answer(options, f"joined the federation {name}; next: p2pfl-node run {folder}", {"federation": name})
    return 0


def _folder_and_source(folder: Path, word: str | None) -> tuple[Path, str]:
    """Return the folder of a node and the source of a credential, of which the user may have left out either.

    Raises:
        ConfigurationError: the folder is not that of a node, or its configuration is wrong.
    """
    from p2pfl.node.folder import config

    if word is None and is_source(str(folder)):
        folder, word = default_folder(), str(folder)
    config.load(folder)  # before a question for the credential
    return folder, word or STANDARD_INPUT


def _approve(options: argparse.Namespace, folder: Path, own: NodeConfig, agreement: Agreement) -> None:
    """Show a federation's settings and ask whether to join; without a terminal, join only if node.toml has the same."""
    from p2pfl.node.federation import join as joining

    joining.check_data(own, agreement, folder)
    different = joining.differences(own, agreement, folder)
    lines = joining.summary(agreement)
    lines += [
        f"  {each.key} is {each.theirs} in the federation, and {each.ours} in this node's node.toml" for each in different
    ]
    print("\n".join(lines), file=sys.stderr)
    if options.yes:
        return
    source = options.token or f"<{own.name}.token"
    again = (
        f"the token or admission remains valid for this node; to accept the options: p2pfl-node join {folder} --yes {source}"
    )
    if sys.stdin.isatty():
        if not agrees("join with these options?"):
            raise ConfigurationError(f"not joined; {again}")
    elif different:
        words = ", ".join(f"{each.key} = {each.theirs}" for each in different)
        raise ConfigurationError(f"not joined: the federation's options differ from node.toml ({words}); {again}")


def _request(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import membership_changes
    from p2pfl.node.federation.membership_file import awaited_federation

    line = membership_changes.request(options.folder, options.new_key)
    if name := awaited_federation(options.folder):
        print(f"note: this node has left the federation {name} until it joins again", file=sys.stderr)
    elif name := membership_changes.former_federation(options.folder):
        note = f"note: this key is that of a former member of {name}, which cannot admit it again; add --new-key"
        print(note, file=sys.stderr)
    print_answer(options, line, {"request": line})
    return 0


def _admit(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import membership_changes

    options.folder, word = _folder_and_source(options.folder, options.request)
    name, role = membership_changes.admit(
        options.folder,
        read(word, (REQUEST,)),
        options.role,
        options.out,
        passphrase=unlock(options),
        reuse_name=options.reuse_name,
    )
    if note := membership_changes.many_note(options.folder):
        print(f"note: {note}", file=sys.stderr)
    text = f"admitted {name}; on its machine, run: p2pfl-node join FOLDER {options.out}"
    print_answer(options, text, {"name": name, "role": role, "admission": str(options.out)})
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from p2pfl.node.federation import membership_changes

    loss = membership_changes.describe_loss(options.folder, options.name)
    if loss and not options.yes:
        confirm(f"{loss}; revoke it?", f"not revoked: {loss}", f"p2pfl-node revoke {options.folder} {options.name} --yes")
    membership_changes.revoke(options.folder, options.name, unlock(options))
    text = f"revoked the membership of {options.name}; running nodes learn of it within seconds"
    print_answer(options, text, {"revoked": options.name})
    return 0


def read(word: str, kinds: Sequence[str]) -> str:
    """Return the text that an argument holds or names: the text itself, a file, or "-" for standard input.

    Args:
        kinds: accepted kinds of text, by their prefixes.

    Raises:
        ConfigurationError: the file cannot be read; the text is empty, of another kind, or not of p2pfl. The error does
            not quote the text, because it may be a secret.
    """
    if kind_of(word):
        source, text = "the argument", word
    else:
        source, text = _read_file(word)
    kind = kind_of(text)
    if kind in kinds:
        return text
    needed = " or ".join(_KINDS[each] for each in kinds)
    if not text.strip():
        raise ConfigurationError(f"{source} is empty; expected {needed}")
    found = f"has {_KINDS[kind]}" if kind else "contains nothing that p2pfl-node has written"
    raise ConfigurationError(f"{source} {found}; expected {needed}")


def is_source(word: str) -> bool:
    """Return whether an argument is the text of a credential, or the name of a file."""
    try:
        return bool(kind_of(word)) or Path(word).is_file()
    except OSError:  # too long for a file name
        return True


def kind_of(text: str) -> str:
    """Return the prefix of the kind of a text; "" if p2pfl did not write it."""
    start = "".join(text[:200].split())  # a mail program may have broken the line
    return next((prefix for prefix in _KINDS if start.startswith(prefix)), "")


def _read_file(word: str) -> tuple[str, str]:
    """Return the name of a source for errors, and its text."""
    if word == STANDARD_INPUT:
        if sys.stdin.isatty():
            print("paste the text, then press Enter: ", end="", file=sys.stderr, flush=True)
            return "standard input", sys.stdin.readline()
        try:
            return "standard input", sys.stdin.read(LONGEST)
        except UnicodeDecodeError as error:
            raise ConfigurationError("the standard input is not UTF-8 text") from error
    try:
        with Path(word).open(encoding="utf-8") as file:
            return word, file.read(LONGEST)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{word} is not UTF-8 text") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {word}: {error.strerror}") from error
