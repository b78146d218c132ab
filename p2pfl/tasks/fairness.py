"""Fair classification: accuracy against fairness of decisions between groups, with one objective for each attribute."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from p2pfl._util.binding import build, choose
from p2pfl._util.shared_work import once
from p2pfl.content import found_paths
from p2pfl.data.image_sets import data_root
from p2pfl.data.partition import group_partition
from p2pfl.data.tabular import fairness_datasets
from p2pfl.data.tabular.table import Kind as ColumnKind
from p2pfl.data.tabular.table import files_of, names
from p2pfl.errors import ConfigurationError
from p2pfl.fairness.fair_task import FairLosses, FairTask, Kind, Measure, Output, lacking_notes
from p2pfl.fairness.metrics import Against
from p2pfl.learning.modules import make_module
from p2pfl.learning.optimizers import OPTIMIZERS
from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.multiobjective.preferences import preference_of
from p2pfl.multiobjective.scalarisation import Objectives, scalarisation
from p2pfl.queries import Split
from p2pfl.random_streams import federation_streams
from p2pfl.task import Part

Table = Mapping[str, Any]
IID, DIRICHLET, LINEAR, ADAM = {"name": "iid"}, {"name": "dirichlet"}, {"name": "linear"}, {"name": "adam"}


def inputs(options: Mapping[str, Any]) -> list[Path]:
    """Return the files that the tasks `fairness` and `praffl` read."""
    data = options.get("data", "")
    return [] if data == fairness_datasets.SYNTHETIC else found_paths(files_of, data, options.get("root", ""))


def fairness(
    part: Part,
    seed: int,
    *,
    data: str,
    root: str = "",
    rows: int = 0,
    sensitive: str | list[str] = "",
    measure: Measure = "demographic-parity",
    against: Against = "groups",
    kind: Kind = "tanh",
    sharpness: float = 3.0,
    share: float = 0.1,
    normalise: bool = False,
    partition: Table = IID,
    validation: float = 0.1,
    test: float = 0.3,
    official: bool = True,
    judged_on: Literal["own", "all"] = "own",
    hidden: list[int] | None = None,
    output: Output = "logit",
    optimizer: Table = ADAM,
    batch_size: int = 128,
    preference: Sequence[float] = (),
    preferences: Table = DIRICHLET,
    scalarisation: Table = LINEAR,
) -> TorchTask:
    """Binary classification with one or several sensitive attributes, whose groups should be treated equally.

    The task contains the fairness benchmarks of Hartmann, Multi-objective learning in federation (chapter 5). The
    objectives are the binary cross-entropy with logits, and for each attribute the relaxed difference between its
    groups plus 0.1 times the cross-entropy. With `normalise`, all are divided by their values before training.

    The model is an MLP 64-32 with ReLU; its inputs include the sensitive columns. The task reports accuracy and
    fairness. Fairness is 1 minus the exact difference: `parity_sex`, `opportunity_race` or `odds_age`, by measure and
    attribute. (The dissertation gives neither c nor the batch size. It divides the losses by their initial values. Here
    these are the values of the initial model on all nodes' training samples, so that a preference means the same on
    each node.)

    Features are fitted on the training samples of all nodes, and on nothing else (see
    p2pfl.data.tabular.table.Encoder). A node on a machine of its own therefore also reads the whole table and takes its
    part.

    Args:
        data: a table with a schema (adult, bank, compas, or the path of a .toml file; see p2pfl.data.tabular.table), or
            "synthetic" for PraFFL's SYNTHETIC.
        root: the folder of the data sets; by default the environment variable P2PFL_DATA.
        rows: number of rows of SYNTHETIC; 0 is 5,000.
        sensitive: one attribute or a list; by default those of the schema. "sex+race" has a group for each combination.
        measure: "demographic-parity", "equal-opportunity", or "equalised-odds".
        against: reference of the reported fairness: the other "groups", or the "mean", as in PraFFL.
        kind: the relaxation: "tanh", or PraFFL's "covariance", which supports only demographic parity.
        sharpness: c of the tanh relaxation.
        share: factor of the cross-entropy that is added to a fairness loss.
        normalise: whether losses are divided by their initial values, as in the dissertation. The difference is almost 0
            for the initial model, so it then counts about fifteen times its weight, and most preferences end near a
            constant classifier.
        partition: { name = "iid" }, "stratified", "dirichlet" (alpha, by), or "proportions" (by, shares); see
            p2pfl.data.partition.group_partition.
        validation: fraction of a node's samples, excluding those for testing.
        test: fraction of all rows, if there is no official test part.
        official: false merges an official test part with the other rows and draws a new test part.
        judged_on: the test samples of a node: its `own` part (default), or `all`.
        hidden: widths of the hidden layers, [64, 32] by default; an empty list makes a linear model.
        output: "logit", or "sigmoid" for a model that ends with a sigmoid, on whose output the cross-entropy with logits is
            computed nevertheless: the literal reading of the dissertation's appendix A.3.2.
        optimizer: { name = "adam" } or "adamw" (lr, betas, eps, weight_decay, schedule), or "sgd" (lr, momentum,
            weight_decay, schedule), where schedule is { name = "cosine", rounds = 20 }, "linear", "step",
            "inverse" or "exponential"; see p2pfl.learning.schedules.
        batch_size: samples in one step of the optimiser; 0 takes all of a node, so that an epoch is one step. The
            difference between groups is noisy in small batches, and an optimiser reduces this noise by deciding alike
            for everybody.
        preference: this node's own weights, first of accuracy and then of each attribute.
        preferences: distribution of the nodes' weights if none are given (see p2pfl.multiobjective.preferences);
            uniform by default.
        scalarisation: { name = "linear" } by default, or { name = "tchebycheff", gamma = 1.0 }.

    Raises:
        ConfigurationError: an option is invalid, or the data cannot be used.
    """
    widths = [64, 32] if hidden is None else hidden
    if not all(width > 0 for width in widths):
        raise ConfigurationError(f"task.hidden must be widths of 1 or more, got {widths}")
    if not (0 < sharpness < inf and 0 <= share < inf):
        raise ConfigurationError("task.sharpness must be more than 0, task.share 0 or more, and both finite")
    if kind == "covariance" and measure != "demographic-parity":
        raise ConfigurationError('task.kind "covariance" supports demographic parity only')
    pool = pool_of(
        data,
        root,
        seed=seed,
        rows=rows,
        count=part.count,
        sensitive=[sensitive] if isinstance(sensitive, str) and sensitive else sensitive or (),
        division=(partition, validation, test, official),
    )
    losses = FairLosses(pool.counts, measure, kind, sharpness, share, output=output)
    steps, how = choose("task.optimizer", optimizer, OPTIMIZERS)
    losses = _normalise(pool, losses, tuple(widths), seed) if normalise else losses
    attributes = tuple(attribute.name for attribute in pool.attributes)
    objectives = ("accuracy_loss", *(f"unfairness_{name}" for name in attributes))
    point, group = preference_of(part, seed, len(objectives), preference, preferences)
    samples = pool.samples(part.index, judged_on == "all")
    return FairTask(
        partial(network, pool.features, widths, output),
        samples,
        metric="reward",
        objectives=Objectives(objectives, losses, _scalarise(scalarisation)),
        preference=point,
        group=group,
        optimizer=build("task.optimizer", steps, how),
        batch_size=batch_size or len(pool.trained),  # of all nodes: learners of one stack have the same
        attributes=attributes,
        counts=pool.counts,
        measured=measure,
        against=against,
        output=output,
        data_facts=pool.facts,
        row_encoding=pool.row_encoding(0.0 if output == "logit" else 0.5),
        data_notes=lacking_notes(measure, attributes, samples["test"].y) if "test" in samples else (),
    )


_scalarise = scalarisation  # the option of the same name hides the function


def network(features: int, widths: Sequence[int], output: Output = "logit") -> nn.Module:
    """Return an MLP with ReLU between its layers, from features to one logit, or to its sigmoid."""
    layers: list[nn.Module] = []
    for before, after in pairwise([features, *widths, 1]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([nn.Sigmoid()] if output == "sigmoid" else []))


Division = tuple[Table, float, float, bool]
"""The options `partition`, `validation`, `test` and `official`."""


def pool_of(
    data: str,
    root: str,
    *,
    seed: int,
    rows: int,
    count: int,
    sensitive: Sequence[str],
    division: Division,
    columns: Mapping[str, ColumnKind] | None = None,
) -> Pool:
    """Return the rows of `count` nodes. The nodes of a process share them as long as the files do not change.

    Args:
        seed: seed of the division, and of SYNTHETIC.
        count: number of nodes.
        sensitive: attributes; if empty, those of the schema.
        columns: changes to the schema's kinds of columns; see p2pfl.data.tabular.table.load.
        data, root, rows, division: options of the tasks with the same names.

    Raises:
        ConfigurationError: an option is invalid, or the data cannot be used.
    """
    where = str(data_root(root, f"the data set {data!r}")) if data in names() else ""
    changes = tuple(sorted((columns or {}).items()))
    return _pool(
        data,
        where,
        once(("table", data, where), lambda: fairness_datasets.content_of(data, where)),
        seed=seed,
        rows=rows,
        count=count,
        sensitive=tuple(sensitive),
        division=json.dumps(division, sort_keys=True, default=str),
        columns=changes,
    )


class Pool:
    """Rows of all nodes of a data set. They are encoded on request."""

    def __init__(
        self,
        data: fairness_datasets.FairSet,
        attributes: Sequence[fairness_datasets.Attribute],
        shares: Sequence[group_partition.Share],
    ) -> None:
        self.attributes = attributes
        self.facts = data.facts([attribute.name for attribute in attributes])
        self.counts = tuple(len(attribute.groups) for attribute in attributes)
        self.trained = np.sort(np.concatenate([share.train for share in shares]))
        self._shares = shares
        self._encode, self._row_encoding = data.encoder(self.trained)
        self._targets = np.column_stack([data.labels, *(attribute.numbers for attribute in attributes)])
        self._common: Samples | None = None
        self.features = self._encode(self.trained[:1]).shape[1]

    def row_encoding(self, threshold: float) -> Mapping[str, Any]:
        """Return how rows become features, and the output of a model above which it answers with the second label."""
        if not self._row_encoding:
            return {}
        return {**self._row_encoding, "target": {**self._row_encoding["target"], "threshold": threshold}}

    def of(self, index: np.ndarray) -> Samples:
        """Return rows as tensors: features [n, d], and label and groups [n, 1 + A], float32."""
        return Samples(torch.from_numpy(self._encode(index)), torch.from_numpy(self._targets[index].astype(np.float32)))

    def samples(self, node: int, all_tests: bool) -> dict[Split, Samples]:
        """Return a node's samples by split; empty splits are left out."""
        share = self._shares[node]
        index: dict[Split, np.ndarray] = {"train": share.train, "validation": share.validation, "test": share.test}
        found = {split: self.of(rows) for split, rows in index.items() if len(rows) and not (all_tests and split == "test")}
        tests = np.sort(np.concatenate([each.test for each in self._shares])) if all_tests else np.empty(0, np.int64)
        if len(tests):
            if self._common is None:  # all nodes share the same tensors
                self._common = self.of(tests)
            found["test"] = self._common
        return found


@lru_cache(maxsize=4)
def _pool(
    data: str,
    root: str,
    content: bytes,
    *,
    seed: int,
    rows: int,
    count: int,
    sensitive: tuple[str, ...],
    division: str,
    columns: tuple[tuple[str, ColumnKind], ...],
) -> Pool:
    partition, validation, test, official = json.loads(division)
    drawn = seed if data == fairness_datasets.SYNTHETIC else 0
    source = _source(data, root, content, seed=drawn, rows=rows, columns=columns)
    chosen = sensitive or source.sensitive
    if not chosen:
        raise ConfigurationError(f"task.sensitive must name an attribute: the schema of {data!r} names none")
    attributes = [source.attribute(name) for name in chosen]
    shares = group_partition.divide(
        source,
        count,
        seed,
        partition=partition,
        sensitive=chosen,
        validation=validation,
        test=test,
        official=official,
    )
    return Pool(source, attributes, shares)


@lru_cache(maxsize=4)
def _source(
    data: str, root: str, content: bytes, *, seed: int, rows: int, columns: tuple[tuple[str, ColumnKind], ...]
) -> fairness_datasets.FairSet:
    return fairness_datasets.load(data, root, seed, rows, dict(columns))


@lru_cache(maxsize=8)
def _normalise(pool: Pool, losses: FairLosses, widths: tuple[int, ...], seed: int) -> FairLosses:
    """Return losses scaled to 1 for the initial model, on the training samples of all nodes."""
    samples = pool.of(pool.trained)
    module = _initial(pool.features, widths, losses.output, seed)
    with torch.no_grad():
        values = losses(module(samples.x), samples.y).tolist()
    if not min(values) > 0:
        raise ConfigurationError(
            "an objective is 0 before training, so it cannot be normalised: set task.share, or task.normalise = false"
        )
    return replace(losses, initial=tuple(values))


def _initial(features: int, widths: Sequence[int], output: Output, seed: int) -> nn.Module:
    """Return the module with the common initial weights; see TorchTask.initial."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(federation_streams(seed).torch_seed(0, "initial model"))
        return make_module(partial(network, features, widths, output))
