"""Agreement of a federation's members: the content of its signed file, and its effects on a node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from p2pfl._util.binding import bind, build, split_name
from p2pfl._version import describe_version
from p2pfl.compression.codecs import make_codec
from p2pfl.errors import ConfigurationError, UnknownKeyError, must_be, name_source, unknown
from p2pfl.node.folder.config import NodeConfig, check_name
from p2pfl.node.settings import Settings, SharedSettings
from p2pfl.parameters import Layout, Parameters
from p2pfl.privacy import LEAST_DELTA, Privacy, check_private_settings
from p2pfl.protocols.election import Timing
from p2pfl.protocols.membership.committee import LEAST, MOST
from p2pfl.robust.registry import NONE, describe_robust
from p2pfl.task import Task
from p2pfl.task_specs import check_shared
from p2pfl.topologies.rings import RingRule
from p2pfl.topologies.schedules import SCHEDULES, GraphSchedule

if TYPE_CHECKING:
    from p2pfl.protocols.membership.federation_file import Federation

AGREED = SharedSettings.__struct_fields__  # in the order of a federation's file
SECURE = ("secure_sums", "secure_threshold")  # of them, those that are only in the files of federations with secure sums
Edges = Literal["all"] | tuple[tuple[str, str], ...]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shared part of the members' models.

    Attributes:
        layout: fingerprint of the shared layout.
        values: number of shared values.
        initial: hash of the initial shared values.
    """

    layout: str
    values: int
    initial: str


class Agreement(SharedSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules on which the members of a federation have agreed: the shared settings, and what no node sets alone.

    Attributes:
        edges: pairs of names that may exchange models; "all" lets every member exchange with every other.
        topology: a rule with its options, by which members compute from whom they fetch: `rings`, or one of
            p2pfl.topologies.schedules with another graph in each round; empty for none.
        model: what the tasks of all members must make.
        greatest_epsilon, greatest_delta: the privacy budget that each member must have at least for its samples; an epsilon
            of 0 demands none. Members cannot check it of each other.
        committee: number of members that elect the coordinator, from 5 to 9 (see p2pfl.protocols.membership.committee); with
            0 all members elect it. It needs a coordinated policy.
        group_size: about as many members submit to one member of the committee, which passes on their mean (see
            p2pfl.node.coordination.groups); with 0 all submit to the coordinator. It needs a committee, a policy whose step
            is the mean, `robust = "none"`, and no secure sums.
    """

    name: str
    edges: Edges
    topology: dict[str, Any] = msgspec.field(default_factory=dict)
    task: dict[str, Any]
    policy: dict[str, Any]
    model: Model
    greatest_epsilon: float = 0.0
    greatest_delta: float = 1e-5
    committee: int = 0
    group_size: int = 0

    def check(self) -> None:
        super().check()
        if not 0 <= self.greatest_epsilon < inf:
            raise must_be("greatest_epsilon", "0 (no demand) or more, and finite", self.greatest_epsilon)
        if not 0 < self.greatest_delta < 1:
            raise must_be("greatest_delta", "above 0 and below 1", self.greatest_delta)
        if self.greatest_delta < LEAST_DELTA:
            raise must_be("greatest_delta", f"{LEAST_DELTA:g} or more, the least delta of a budget", self.greatest_delta)
        if self.committee and not LEAST <= self.committee <= MOST:
            raise must_be("committee", f"0 (all members elect the coordinator), or from {LEAST} to {MOST}", self.committee)
        if self.group_size and not LEAST_GROUP <= self.group_size <= MOST_GROUP:
            raise must_be("group_size", f"0 (no groups), or from {LEAST_GROUP} to {MOST_GROUP:,} members", self.group_size)


# Keys of `federation create --set` that are in no node.toml.
DEMAND = "greatest_epsilon", "greatest_delta", "committee", "group_size"
Approve = Callable[[NodeConfig, Agreement], None]
"""Check that raises ConfigurationError if a node's owner does not approve a federation's settings."""


def approve_all(own: NodeConfig, agreement: Agreement) -> None:
    """Approve all settings of a federation."""


def draft(
    name: str,
    config: NodeConfig,
    task: Task,
    edges: Edges = "all",
    topology: Mapping[str, Any] | None = None,
    *,
    demand: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the agreement of a federation whose members are all configured like this node.

    Args:
        demand: the keys of DEMAND that are set, unchecked.

    Options that the task took from this node's data, such as the number of classes, become options of the federation.

    Raises:
        ConfigurationError: the task or the policy has an option that each node sets for itself.
    """
    _check_options(config.task, config.policy)
    agreed = [key for key in AGREED if config.secure_sums or key not in SECURE]
    settings = msgspec.to_builtins({key: getattr(config, key) for key in agreed})
    model = _model(task, task.initial(config.seed))
    pairs = edges if edges == "all" else [list(pair) for pair in edges]
    return {
        "name": name,
        **settings,
        "edges": pairs,
        **({"topology": dict(topology)} if topology else {}),
        "task": {**config.task, **task.derived_options},
        "policy": config.policy,
        "model": msgspec.to_builtins(model),
        **(demand or {}),
    }


@contextmanager
def reading_keys_of(name: str, own: Collection[str] = ()) -> Iterator[None]:
    """Convert the error for an unknown key: a newer version has made the federation, and this node cannot correct it.

    Args:
        name: the name of the federation.
        own: keys that are not of the federation.
    """
    try:
        yield
    except UnknownKeyError as error:
        if error.keys[0] in own:
            raise
        raise ConfigurationError(
            f"the federation {name} sets {error.keys[0]}, which p2pfl {describe_version()} does not know: a newer"
            " version, or a newer module of your own, has created it; upgrade this node to the version of the other members",
            *error.keys,
        ) from error


def read(federation: Federation) -> Agreement:
    """Return the agreement in a federation's signed file.

    Raises:
        ConfigurationError: it was made by another version of p2pfl, is invalid, or sets an option that each node sets
            for itself: a file of its machine, or its preference.
    """
    with reading_keys_of(federation.name), name_source(f"the federation {federation.name}"):
        agreement = bind(federation.tables, Agreement)
        for key in AGREED:  # a default that another version fills in would not be what the members signed
            if key not in federation.tables and key not in ("codec", *SECURE):
                raise ConfigurationError(f"{key} is missing", key)
        for kind in ("task", "policy"):
            split_name(kind, getattr(agreement, kind))
        if agreement.model.values < 1:
            raise must_be("model.values", "1 or more", agreement.model.values)
        agreement.check()
        _check_options(agreement.task, agreement.policy)
        check_topology(agreement.topology, agreement.edges)
        return agreement


def _check_options(task: Mapping[str, Any], policy: Mapping[str, Any]) -> None:
    name, options = split_name("task", task)
    check_shared("task", name, options)
    check_shared("policy", "", split_name("policy", policy)[1])


def check_agreement(own: NodeConfig, federation: Federation) -> Agreement:
    """Return the agreement of the federation that a node is to join; nothing is imported.

    Raises:
        ConfigurationError: see `read` and `apply_agreement`.
    """
    agreement = read(federation)
    apply_agreement(own, agreement)
    return agreement


def check_tables(own: NodeConfig, tables: Mapping[str, Any], coordinated: bool = False, only_mean: bool = False) -> None:
    """Raise ConfigurationError if the agreement of a new federation is invalid, or its first member does not fit it.

    Args:
        coordinated: whether the policy has a coordinator.
        only_mean: whether that needs no more than the mean of all models.
    """
    agreement = bind(tables, Agreement)
    agreement.check()
    check_committee(agreement, coordinated)
    check_groups(agreement, only_mean)
    apply_agreement(own, agreement)


def apply_agreement(config: NodeConfig, agreement: Agreement) -> NodeConfig:
    """Return a node's configuration with the values of the federation's agreement.

    Raises:
        ConfigurationError: the node's own configuration names another task or policy, or has not the privacy budget that
            the federation demands, or has one that its settings would leak past. A task or policy of a federation is never
            imported unless the node's owner has named it too.
    """
    for kind in ("task", "policy"):
        own, theirs = getattr(config, kind)["name"], getattr(agreement, kind)["name"]
        if own != theirs:
            raise ConfigurationError(
                f"{kind}.name is {own!r} in this node's node.toml, but {theirs!r} in the federation {agreement.name};"
                " change it in node.toml, and run the command again"
            )
    if problem := unmet_demand(config.privacy, agreement):
        raise ConfigurationError(problem, "privacy")
    if config.privacy.epsilon:
        check_private_settings(config.privacy, agreement.patience, agreement.robust)
    values = {key: getattr(agreement, key) for key in (*AGREED, "task", "policy")}
    return msgspec.structs.replace(config, **values)


def unmet_demand(privacy: Privacy, agreement: Agreement) -> str:
    """Return why a node's privacy budget is not what its federation demands, with the remedy; "" if it is."""
    epsilon, delta = agreement.greatest_epsilon, agreement.greatest_delta
    if not epsilon or (0 < privacy.epsilon <= epsilon and privacy.delta <= delta):
        return ""
    own = f"has epsilon {privacy.epsilon:g} at delta {privacy.delta:g}" if privacy.epsilon else "has none"
    return (
        f"the federation {agreement.name} demands of each member a privacy budget of at most epsilon {epsilon:g} at delta"
        f" {delta:g}, and this node {own}; set privacy.epsilon and privacy.delta in its node.toml"
    )


def check_spent(privacy: Privacy, spent: float, agreement: Agreement) -> None:
    """Raise ConfigurationError if a node has spent more already than its federation demands, whatever its budget is now.

    Args:
        spent: epsilon of its steps so far at the delta of its budget.
    """
    epsilon = agreement.greatest_epsilon
    if epsilon and spent > epsilon:
        raise ConfigurationError(
            f"the federation {agreement.name} demands of each member at most epsilon {epsilon:g}, and this node has spent"
            f" {spent:.4g} at delta {privacy.delta:g} already; take part with a new node that has other data",
            "privacy",
        )


LEAST_GROUP, MOST_GROUP = 2, 100_000  # members of a group


def check_groups(agreement: Agreement, only_mean: bool) -> None:
    """Raise ConfigurationError if a federation has groups, and their means are not all that its coordinator needs.

    Args:
        only_mean: see p2pfl.policy.needs_only_mean.
    """
    if not agreement.group_size:
        return
    what = ""
    if not agreement.committee:
        what = "a committee, such as --set committee=7: its members compute the means of the groups"
    elif not only_mean:
        what = "a policy whose step is the mean: coordinated-fedavg, coordinated-fedprox, ditto, apfl, per-fedavg or fedrep"
    elif agreement.secure_sums:
        what = "secure_sums = false: a member that computes the mean of a group sees its models"
    elif agreement.robust != NONE:
        what = f'robust = "none", because the coordinator sees no single models, got {describe_robust(agreement.robust)}'
    if what:
        raise ConfigurationError(f"group_size = {agreement.group_size} needs {what}", "group_size")


def describe_groups(agreement: Agreement) -> dict[str, str]:
    """Return the way of the step with groups as an agreed setting, as text; {} without groups."""
    if not agreement.group_size:
        return {}
    words = f"the mean by samples, of means of groups of about {agreement.group_size} that members of the committee make"
    return {"joint aggregation behaviour": words}


def check_committee(agreement: Agreement, coordinated: bool) -> None:
    """Raise ConfigurationError if a federation has a committee, and its policy no coordinator."""
    if agreement.committee and not coordinated:
        raise ConfigurationError(
            f"committee = {agreement.committee} needs a coordinated policy: the committee elects the coordinator, and the"
            f" policy {agreement.policy['name']} has none",
            "committee",
            "policy",
        )


def describe_committee(agreement: Agreement, timing: Timing | None) -> dict[str, str]:
    """Return the way of elections as an agreed setting, as text; {} if all members vote, or there is no coordinator."""
    if not agreement.committee or timing is None:
        return {}
    return {"coordinator": f"elected by a committee of {agreement.committee}; {_times(timing)}"}


def describe_demand(agreement: Agreement) -> dict[str, str]:
    """Return the privacy that members demand of each other as an agreed setting, as text; {} if they demand none."""
    if not agreement.greatest_epsilon:
        return {}
    epsilon, delta = agreement.greatest_epsilon, agreement.greatest_delta
    return {"privacy": f"each member claims epsilon {epsilon:g} or less at delta {delta:g} or less"}


def same_model(agreement: Agreement, task: Task, initial: Parameters) -> None:
    """Raise ConfigurationError if this node's task makes another model than the federation's."""
    ours = _model(task, initial)
    for key, words in (("values", "number of parameters"), ("layout", "layout"), ("initial", "initial model")):
        mine, theirs = getattr(ours, key), getattr(agreement.model, key)
        if mine != theirs:
            layouts = f" (layouts {ours.layout} and {agreement.model.layout})" if key == "values" else ""
            raise ConfigurationError(
                f"the {words} differs: {mine} for this node's task, {theirs} in the federation{layouts}"
            )


def _model(task: Task, initial: Parameters) -> Model:
    layout = task.layout
    return Model(layout.shared.fingerprint.hex(), layout.shared.size, digest(layout.shared_of(initial)))


def check_edges(edges: Sequence[Sequence[str]]) -> Edges:
    """Return pairs of names as edges.

    Raises:
        ConfigurationError: one is not a pair of two different names.
    """
    for pair in edges:
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ConfigurationError(f"an edge must be a pair of two names such as alice-bob, got {'-'.join(pair)!r}")
    return tuple((pair[0], pair[1]) for pair in edges)


LARGEST_LIST = 2**20  # maximum bytes of a file of edges


HEADERS = ({"source", "target"}, {"from", "to"}, {"src", "dst"}, {"node1", "node2"}, {"id_1", "id_2"})


def read_edges(path: Path) -> list[list[str]]:
    """Return the pairs of names in a file: two names per line, separated by blanks or a comma; `#` starts a comment.

    Raises:
        ConfigurationError: the file cannot be read, or is too large, or a line is not a pair of names of nodes.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_LIST + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text") from error
    if len(content) > LARGEST_LIST:
        raise ConfigurationError(f"{path} is too large: it has more than {LARGEST_LIST:,} bytes")
    pairs: list[list[str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        pair = line.partition("#")[0].replace(",", " ").split()
        try:
            for name in pair:
                check_name(name)
            if {name.lower() for name in pair} in HEADERS and not pairs:
                raise ConfigurationError(f"{line.strip()!r} names columns; remove the line")
            check_edges([pair] if pair else [])
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: line {number}: {error}") from error
        pairs += [pair] if pair else []
    return pairs


def neighbours(edges: Edges, name: str, members: Collection[str]) -> set[str]:
    """Return the members with which a node may exchange models."""
    others = set(members) - {name}
    if edges == "all":
        return others
    return others & {b if a == name else a for a, b in edges if name in (a, b)}


def check_topology(topology: Mapping[str, Any], edges: Edges = "all") -> None:
    """Raise ConfigurationError unless members can follow a rule with a graph for each round, whoever comes or goes."""
    if not topology:
        return
    if edges != "all":
        raise ConfigurationError("a federation has a topology or edges, not both", "topology", "edges")
    name, _ = split_name("topology", topology)
    if name == "hypercube":
        raise ConfigurationError(
            "topology: a hypercube needs a power of 2 as its number of members, who come and go; base-k with degree = 1 is"
            " the hypercube then, and takes any number",
            "topology.name",
        )
    if name in RINGS:
        ring_rule(topology, 0)
        return
    if name not in SCHEDULES:
        raise unknown("topology", name, ["rings", *(each for each in SCHEDULES if each != "hypercube")])
    graphs_of(topology, 0, 2)


RINGS = {"rings": False, "changing-rings": True}
"""Rules with links to few members, and whether each round has others."""
MANY = 50  # members beyond which a complete graph costs each of them much


def changes(topology: Mapping[str, Any]) -> bool:
    """Return whether a federation's topology has another graph in each round."""
    return bool(topology) and RINGS.get(topology["name"], True)


def ring_rule(topology: Mapping[str, Any], seed: int) -> RingRule | None:
    """Return the rule by which a member computes its neighbours; None if the topology is no rings.

    Raises:
        ConfigurationError: it has an option that does not exist, or an invalid one.
    """
    if not topology or topology["name"] not in RINGS:
        return None
    name, options = split_name("topology", topology)
    rule: RingRule = build("topology", RingRule, options, seed=seed, changing=RINGS[name])
    return rule


def check_rings(topology: Mapping[str, Any], coordinated: bool) -> None:
    """Raise ConfigurationError if a federation with rings has a coordinated policy, whose models go to the coordinator."""
    if coordinated and topology and topology["name"] in RINGS:
        raise ConfigurationError(
            f"a coordinated policy submits its models to the coordinator, so {topology['name']} has no effect on it; leave"
            " the topology out (with committee = 7 members have links with few others)",
            "policy",
            "topology",
        )


def many_note(tables: Mapping[str, Any], members: int) -> str:
    """Return what to choose for a federation of so many members in which all have links with all; "" otherwise.

    Args:
        tables: the agreement.
    """
    bounded = tables.get("topology", {}).get("name") in RINGS or tables.get("edges") != "all" or tables.get("committee")
    if members <= MANY or bounded:
        return ""
    return (
        f"each of {members:,} members has links with all others, which is for up to about {MANY}; for more, create the"
        " federation with --topology rings or changing-rings, or with --set committee=7 if its policy has a coordinator"
    )


def graphs_of(topology: Mapping[str, Any], seed: int, members: int) -> GraphSchedule:
    """Return the rule of a federation's topology for a number of members.

    Raises:
        ConfigurationError: it has an option that does not exist, or an invalid one.
    """
    name, options = split_name("topology", topology)
    schedule: GraphSchedule = build("topology", SCHEDULES[name], options, n=members, seed=seed)
    return schedule


def terms(
    layout: Layout,
    settings: Settings,
    initial: str,
    edges: Edges = "all",
    timing: Timing | None = None,
    *,
    fragments: bool = False,
    topology: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the settings, as text, that both ends of a link must share: decisions, times, inputs and failures.

    Args:
        timing: timing of the elections, if the policy is coordinated.
        fragments: whether the policy fetches parts of models. A node that does not know their messages then differs.
        topology: see `Agreement`.

    The list follows tables 6.2 and 6.3 of Hartmann, Multi-objective learning in federation (University of Luxembourg,
    2026): the information that a protocol of federated learning should publish before models are exchanged.
    """
    synchronous = settings.mode == "synchronous"
    waits = f"waits {settings.deadline:g} s at most" + (", fewer where peers are quick" if settings.adaptive else "")
    graph = "everyone with everyone" if edges == "all" else f"{len(edges)} edges ({_hash(repr(sorted(edges)))})"
    if topology:
        options = ", ".join(f"{key} = {value!r}" for key, value in sorted(topology.items()) if key != "name")
        rule = f"{topology['name']}{f' ({options})' if options else ''}"
        kind = "neighbours by rule" if topology["name"] in RINGS else "another graph in each round"
        graph = f"{kind}: {rule}"
    coordinated = {} if timing is None else _coordination_settings(timing, settings)
    collected = "models or fragments fetched from peers" if fragments else "fetched from peers"
    return {
        "system topology": f"no server; {graph}",
        "coordinator": "none",
        "layout": f"{layout.size} values in {len(layout.shapes)} tensors ({layout.fingerprint.hex()})",
        "initial model": initial,
        "seed": str(settings.seed),
        "round mode": settings.mode,
        "rounds": str(settings.rounds),
        "local submission trigger": "the end of a round's training, and a peer's request",
        "local submission format": make_codec(*split_name("codec", settings.codec)).words,
        "local aggregation behaviour": "waits for models of its round" if synchronous else "takes the newest models",
        "joint aggregation behaviour": "none; every node aggregates for itself",
        "integration of a received model": "as the policy says, in place of the local model",
        "model collection": f"{collected}, as many as the policy asks for and the node's own budget lets in",
        "failure handling": f"{waits}, goes on without a silent peer until it is heard",
        "robust aggregation": describe_robust(settings.robust),
        "early stopping": f"after {settings.patience} rounds" if settings.patience else "never",
    } | coordinated


def _coordination_settings(timing: Timing, settings: Settings) -> dict[str, str]:
    """Return the settings that differ if the policy has a coordinator, and then if it sees sums only."""
    return {
        "coordinator": f"elected by a majority of the members; {_times(timing)}",
        "local submission trigger": "the end of a round's training",
        "local aggregation behaviour": "takes what the coordinator assigns",
        "joint aggregation behaviour": "the policy's step, made by the coordinator of what has come after half of the wait",
        "model collection": "submitted to the coordinator, whatever the topology is",
    } | (_sum_settings(settings.secure_threshold) if settings.secure_sums else {})


def _times(timing: Timing) -> str:
    return f"beats every {timing.beat:g} s, a lease of {timing.lease:g} s, patience of {timing.patience:g} s"


def _sum_settings(threshold: int) -> dict[str, str]:
    least = f"at least {threshold} members" if threshold else "more than two thirds of the members with a vote"
    return {
        "local submission format": "all parameters, masked, 64 bits each",
        "joint aggregation behaviour": f"the mean by samples, of a secure sum that {least} open",
    }


def describe(prefix: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration table as text, such as {"policy.tau": "30.0"}; a long value is replaced by its hash."""
    words = {}
    for key, value in options.items():
        text = repr(value)
        if len(text) > LONGEST_TERM:
            text = f"{text[:40]}... ({_hash(text)})"
        words[f"{prefix}.{key}"[:64]] = text
    return words


LONGEST_TERM = 200


def digest(params: Parameters) -> str:
    """Return the hash of a model's shared part in the form of the federation's file."""
    return sha256(params.tobytes()).hexdigest()


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
