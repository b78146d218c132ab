"""Reader of elections and coordinated rounds as in docs/wire-protocol.md: a voter, submissions, assignments."""

from __future__ import annotations

from math import prod, sqrt

from tests.conformance.wire_models import EXTRAS, floats, follows, more_text, unpack_value
from tests.conformance.wire_types import U32, WORD, array_of, boolean, expect, kinds, number, structure

PATIENCE = 2.0
FURTHEST = 1024
TERM = {"membership_version": U32, "term": U32}
MESSAGES = {
    "vote": structure(TERM | {"trial": boolean}),
    "voted": structure(TERM | {"trial": boolean, "granted": boolean}),
    "leading": structure(TERM | {"beat": U32}),
    "following": structure(TERM | {"beat": U32}),
    "submit": structure({"request": U32, "round": U32, **TERM, "n_samples": U32, "start": boolean}),
    "assigned": structure({"request": U32, "round": U32, **TERM, "given": boolean}),
}
SAID = kinds(MESSAGES)


class Voter:
    """Member, from its start, that does not stand for election."""

    def __init__(self, given):
        self.me, electorate = given["me"], given["electorate"]
        self.membership_version, self.members, self.eligible = (
            electorate[key] for key in ("membership_version", "members", "eligible")
        )
        self.term, self.vote = given["term"], given["vote"]
        self.coordinator, self.beat = "", 0
        self.promised = "", given["started"] + PATIENCE  # the candidate, and the end of the promise
        self.far = {}  # by sender: the last term that is too far ahead

    def receive(self, now, sender, said):
        """Return the answer to a message, or None."""
        if said["membership_version"] != self.membership_version or sender not in self.members or sender == self.me:
            return None
        self.expect_credible(sender, said["term"])
        if said["kind"] in ("vote", "leading"):
            expect(sender in self.eligible, "election")
        match said["kind"]:
            case "vote":
                return self.on_vote(now, sender, said)
            case "leading":
                return self.on_leading(now, sender, said)
            case "following":
                if said["term"] > self.term:
                    self.adopt(said["term"])
        return None

    def expect_credible(self, sender, term):
        if term <= self.term + FURTHEST:
            return
        self.far[sender] = term
        claims = sorted((claim for claim in self.far.values() if claim > self.term + FURTHEST), reverse=True)
        needed = max(2, len(self.members) // 2 + 1)
        if len(claims) >= needed:
            self.adopt(claims[needed - 1])
        expect(term <= self.term + FURTHEST, "election")

    def on_vote(self, now, sender, said):
        granted = self.grant(now, sender, said["term"], said["trial"])
        return ["voted", self.membership_version, said["term"] if granted else self.term, said["trial"], granted]

    def grant(self, now, sender, term, trial):
        whom, until = self.promised
        if (now < until and whom != sender) or term < self.term:
            return False
        if trial:
            return term > self.term
        if term > self.term:
            self.adopt(term)
        self.vote = self.vote or sender
        return self.vote == sender

    def on_leading(self, now, sender, said):
        if said["term"] < self.term:
            return ["following", self.membership_version, self.term, 0]
        if said["term"] > self.term:
            self.adopt(said["term"])
        expect(self.coordinator in ("", sender), "election")
        if self.coordinator and said["beat"] <= self.beat:
            return None
        self.coordinator, self.beat = sender, said["beat"]
        self.promised = sender, now + PATIENCE
        return ["following", self.membership_version, self.term, said["beat"]]

    def adopt(self, term):
        self.term, self.vote, self.coordinator = term, "", ""


def check_election(given):
    voter, answers = Voter(given), []
    for now, sender, message in given["heard"]:
        answers.append(voter.receive(now, sender, SAID(message)))
    return {"answers": answers, "term": voter.term, "vote": voter.vote, "coordinator": voter.coordinator}


# Payloads


def both(first, second):
    def check(value):
        expect(type(value) is list and len(value) == 2, "malformed")
        return first(value[0]), second(value[1])

    return check


SUBMISSION = both(EXTRAS, EXTRAS)
ASSIGNMENT = both(array_of(both(WORD, number(finite=True)), 65536), EXTRAS)


def models(given, number, data):
    """Return the bytes of `number` models, and the rest."""
    size = 4 * sum(prod(shape) for shape in given["tensors"])
    expect(len(data) >= number * size, "wrong length")
    return [data[k * size : (k + 1) * size] for k in range(number)], data[number * size :]


def check_submission(given):
    found, rest = models(given, 1 + given["start"], bytes.fromhex(given["bytes"]))
    extras, previous = map(unpack_value, follows(rest, SUBMISSION) if rest else ([], []))
    params, *start = map(floats, found)
    return {
        "params": params,
        "start": start[0] if start else None,
        "extras": more_text(extras),
        "previous": more_text(previous),
    }


def check_assignment(given):
    (model,), rest = models(given, 1, bytes.fromhex(given["bytes"]))
    pairs, arrays = follows(rest, ASSIGNMENT)
    expect(len(dict(pairs)) == len(pairs), "malformed")
    extras = unpack_value(arrays)
    return {"params": floats(model), "weights": dict(pairs), "extras": more_text(extras)}


def expect_small(values, given):
    expect(sqrt(sum(v * v for v in values)) <= 1000 * (1 + given["norm"]), "too large")


def check_submit(given):
    """Check a submission of alice as a node does before it keeps it for its step."""
    said = given["message"]
    term = [said["membership_version"], said["term"]]
    expect(term >= given["term"], "lower term")
    expect(term == given["term"] and given["coordinates"], "not the coordinator")
    if "alice" not in given["voters"]:
        return {"taken": False}
    expect(said["n_samples"] == given["public_info"].get("n_samples"), "differs")
    found = check_submission(given | {"start": said["start"], "bytes": given["payload"]})
    for model in (found["params"], found["start"] or []):
        expect_small(model, given)
    return {"taken": True}


def check_assigned(given):
    """Handle an assignment of alice as a participant does."""
    said, asked = given["message"], given["asked"]
    term = [said["membership_version"], said["term"]]
    expect(term >= given["term"], "lower term")
    if said["request"] != asked["request"]:
        return {"answered": False}
    expect((asked["of"], asked["term"], asked["round"]) == ("alice", term, said["round"]), "not asked for")
    expect(term == given["term"] and given["follows"] == "alice", "not asked for")
    if not said["given"]:
        expect(not given["payload"], "wrong length")
        return {"answered": True, "params": None}
    found = check_assignment(given | {"bytes": given["payload"]})
    expect_small(found["params"], given)
    expect(set(found["weights"]) <= set(given["voters"]), "differs")
    return {"answered": True, "params": found["params"]}


CHECKS = {
    "election": check_election,
    "submission": check_submission,
    "assignment": check_assignment,
    "submit": check_submit,
    "assigned": check_assigned,
}
