"""Settings of a node's rounds: the keys that a node's configuration and a simulation's scenario have in common."""

from __future__ import annotations

from math import inf
from typing import Any, Literal

import msgspec

from p2pfl._util.binding import split_name
from p2pfl.compression.codecs import make_codec
from p2pfl.errors import ConfigurationError, about, must_be
from p2pfl.policy import (
    BestBy,
    Coordinated,
    Policy,
    always_waits,
    counts_models,
    fetches_fragments,
    needs_only_mean,
    never_waits,
)
from p2pfl.robust.coordinate_wise import CoordinateWise
from p2pfl.robust.registry import NONE, Robust, coordinator_rule, describe_robust, make_rule, split_robust

UNITS = {"seconds": "s", "bytes": "bytes"}  # of the limits of End
MOST_DISTRUST = 100  # the score of a member that has sent different models of one round
DEFAULT_TASK, DEFAULT_POLICY = "digits", "dac"  # of nodes and of scenarios


class SharedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules of the rounds on which the members of a federation must agree.

    Attributes:
        rounds: number of rounds of each node.
        seed: seed of the federation; together with a node's name, the round and a purpose it determines every random
            draw.
        members: number of members, this node included, that must be present before the first round begins.
        mode: `synchronous` nodes exchange models of the same round and wait for each other; `asynchronous` nodes use
            the newest available models.
        deadline: seconds to wait for a peer before continuing without it; inf is no limit.
        adaptive: whether to adapt the wait to each peer: a few times its usual response time, at most `deadline`.
        max_staleness: maximum age in seconds of the models that an asynchronous node uses.
        patience: rounds without a better model on the validation data before a node stops learning (it continues to
            serve its model); 0 never stops.
        robust: protection against malicious members: the name of a rule of p2pfl.robust.registry, or a table with a
            `name` and options; `clip-loss` clips models to the median distance from the own one, and trusts those with a
            low loss on the node's validation data more; `none` accepts everything unchanged. All rules except `none`
            cap the numbers of samples that peers claim, and answer with coarse losses.
        codec: encoding of sent models, a table with a `name` of p2pfl.compression.codecs and options; by default
            float32.
        secure_sums: whether nodes submit masked models to the coordinator, which learns their sum only; for policies that
            need no more, with `robust = "none"`. See p2pfl.protocols.secure_sums.
        secure_threshold: with secure sums, the least number of members whose sum is opened; 0 is more than two thirds of
            the members with a vote. Fewer than (n + 1) / 2 + 1 of n have no effect: they would not protect from a
            coordinator that lies.
    """

    rounds: int = 10
    seed: int = 0
    members: int = 1
    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    deadline: float = 30.0
    adaptive: bool = False
    max_staleness: float = inf
    patience: int = 0
    robust: Robust = NONE
    codec: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "float32"})
    secure_sums: bool = False
    secure_threshold: int = 0

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        for key in ("rounds", "seed", "members", "patience", "secure_threshold"):
            if getattr(self, key) < 0:
                raise must_be(key, "0 or more", getattr(self, key))
        for key in ("deadline", "max_staleness"):
            if not getattr(self, key) > 0:
                raise must_be(key, "more than 0 seconds", getattr(self, key))
        with about("codec"):
            make_codec(*split_name("codec", self.codec))
        with about("robust"):
            make_rule(self.robust)
        self._check_secure_sums()

    def _check_secure_sums(self) -> None:
        if self.secure_threshold and not self.secure_sums:
            raise ConfigurationError("secure_threshold needs secure_sums = true", "secure_threshold", "secure_sums")
        if self.secure_sums and self.robust != NONE:
            raise ConfigurationError(
                "secure sums hide the models that a robust rule compares; set robust ="
                f' "none" or secure_sums = false, got {describe_robust(self.robust)}',
                "secure_sums",
                "robust",
            )


class Settings(SharedSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules of a node's rounds, with those that it chooses alone.

    Attributes:
        best_by: what makes a round's model the best, which is the node's result: the lowest validation `loss`, or the
            best validation `metric` of the task (the last of equal ones). The policy's `reported_stage` selects the
            model of a round; DPFL's option `snapshot = "trained"` counts it after local training.
        evaluate_every: rounds between evaluations on the validation and test data; the last round is always evaluated. 0
            evaluates the last model only.
        device: `cpu`, `cuda`, `mps`, or `auto` for the best available one. Results differ in their last bits.
        distrust: score from which a node leaves out a peer (see p2pfl.node.conduct), from 1 to 100; 0 leaves no
            peer out.
    """

    best_by: BestBy = "loss"
    evaluate_every: int = 1
    device: str = "cpu"
    distrust: int = 0

    def check(self) -> None:
        super().check()
        if self.evaluate_every < 0:
            raise must_be("evaluate_every", "0 or more", self.evaluate_every)
        if not 0 <= self.distrust <= MOST_DISTRUST:
            raise must_be("distrust", f"from 0 to {MOST_DISTRUST}", self.distrust)


class Used(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds and bytes that the rounds of a node have used so far, without the preparation.

    Attributes:
        seconds: seconds in which the node ran its rounds. Waits at a start and times of serving do not count.
        bytes: bytes that it has received in rounds.
    """

    seconds: float = 0.0
    bytes: int = 0


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits after which a node ends before all of its rounds; 0 means no limit.

    Attributes:
        seconds: of a node, the seconds of its rounds in all of its runs together; it ends with the round in which they
            pass. Of a simulation, its virtual seconds, at which all nodes end at once.
        bytes: bytes that a node receives in rounds, as `bytes_in` counts them; a node that has received so many ends with
            this round, and continues to serve its last model.
    """

    seconds: float = 0.0
    bytes: int = 0

    def check(self) -> None:
        """Raise ConfigurationError for an invalid value."""
        for key in UNITS:
            if not 0 <= (value := getattr(self, key)) < inf:
                raise must_be(f"end.{key}", "0 or more, and finite", value)

    def reached(self, used: Used) -> str:
        """Return the first limit that is used up, with its use, as text; "" if none is."""
        for key, unit in UNITS.items():
            limit, value = getattr(self, key), getattr(used, key)
            if 0 < limit <= value:
                return f"end.{key} is reached: {value:,.10g} of {limit:,.10g} {unit}"
        return ""


def detects(settings: Settings) -> bool:
    """Return whether a node compares the models of its peers to detect dishonest members."""
    return settings.robust != NONE or settings.distrust > 0


def check_coordinated(settings: Settings) -> None:
    """Raise ConfigurationError if a coordinated policy cannot run with these settings."""
    if settings.mode != "synchronous":
        raise ConfigurationError(f'a coordinated policy needs mode = "synchronous", got {settings.mode!r}')
    if settings.codec.get("name") != "float32":
        raise ConfigurationError(f'a coordinated policy needs codec.name = "float32", got {settings.codec.get("name")!r}')
    coordinator_rule(settings.robust)


def check_policy(settings: Settings, policy: Policy) -> None:
    """Raise ConfigurationError if a policy cannot run with the mode, the codec or the robust rule."""
    _check_mode(settings, policy)
    _check_fragments(settings, policy)
    if settings.secure_sums and not needs_only_mean(policy):
        what = "compares the models that are submitted" if isinstance(policy, Coordinated) else "has no coordinator"
        raise ConfigurationError(
            f"the policy {type(policy).__name__} {what}; secure sums are for coordinated-fedavg, coordinated-fedprox,"
            " fedbn, ditto, apfl, per-fedavg, pfedme, fedala and fedrep",
            "secure_sums",
            "policy",
        )
    if counts_models(policy) and (codec := settings.codec.get("name")) != "float32":
        raise ConfigurationError(
            f"the policy {type(policy).__name__} adds up what it receives, so the errors of a codec would change the sum of"
            f' all models; set codec.name = "float32", got {codec!r}',
            "codec",
            "policy",
        )


def _check_mode(settings: Settings, policy: Policy) -> None:
    if always_waits(policy) and settings.mode == "asynchronous":
        raise ConfigurationError(
            f'the policy {type(policy).__name__} needs mode = "synchronous": nodes that do not wait would pass its rounds'
            " without training in no time, or break its sums; policies for them are ad-psgd and sgp",
            "mode",
            "policy",
        )
    if never_waits(policy) and settings.mode == "synchronous":
        raise ConfigurationError(
            f'the policy {type(policy).__name__} needs mode = "asynchronous": its nodes take models of rounds that others'
            ' have not ended; got "synchronous"',
            "mode",
            "policy",
        )


def _check_fragments(settings: Settings, policy: Policy) -> None:
    """Raise ConfigurationError if a policy fetches fragments, but the codec or the robust rule works on whole models."""
    if not fetches_fragments(policy):
        return
    needs = f"the policy {type(policy).__name__} fetches fragments of models, which need"
    if settings.codec.get("name") != "float32":
        raise ConfigurationError(f'{needs} codec.name = "float32", got {settings.codec.get("name")!r}', "codec")
    if settings.robust != NONE and not isinstance(make_rule(settings.robust), CoordinateWise):
        name, _ = split_robust(settings.robust)
        raise ConfigurationError(
            f"{needs} a robust rule of single values, which are median and trimmed, or none; got {name!r}", "robust"
        )
