"""The checks of elections and coordinated rounds, done by the code that nodes run."""

from math import prod

import msgspec
import numpy as np
from wire_models import more_text

from protocols import messages as m
from protocols.election import Election
from protocols.submission import decode_assignment, decode_submission
from protocols.terms import Ballot, Electorate, Term

DTYPES = {np.dtype("<f4"): "f4", np.dtype("<f8"): "f8", np.dtype("<i8"): "i8", np.dtype("<u8"): "u8"}


def arrays(extras):
    return more_text({name: [DTYPES[a.dtype], list(a.shape), a.reshape(-1).tolist()] for name, a in extras.items()})


def check_election(given):
    epoch, members, eligible = (given["electorate"][key] for key in ("epoch", "members", "eligible"))
    electorate = Electorate(epoch, frozenset(members), tuple(eligible))
    ballot = Ballot(Term(epoch, given["term"]), given["vote"])
    voter = Election(given["me"], electorate, ballot, lambda: 0.0, given["started"])
    answers = []
    for now, sender, said in given["heard"]:
        step = voter.receive(sender, msgspec.convert(said, m.Electing), now)
        assert {name for name, _ in step.send} <= {sender}
        answers.append(msgspec.to_builtins(step.send[0][1]) if step.send else None)
    coordinator = next((name for name in members if voter.obeys(name, voter.term)), "")
    return {"answers": answers, "term": voter.term.number, "vote": voter.ballot.vote, "coordinator": coordinator}


def size_of(given):
    return sum(prod(shape) for shape in given["tensors"])


def check_submission(given):
    found = decode_submission(bytes.fromhex(given["bytes"]), size_of(given), given["start"])
    start = None if found.start is None else found.start.tolist()
    said = {"extras": arrays(found.extras), "previous": arrays(found.previous)}
    return {"params": found.params.tolist(), "start": start, **said}


def check_assignment(given):
    found = decode_assignment(bytes.fromhex(given["bytes"]), size_of(given))
    return {"params": found.params.tolist(), "weights": found.weights, "extras": arrays(found.extras)}


CHECKS = {"election": check_election, "submission": check_submission, "assignment": check_assignment}
