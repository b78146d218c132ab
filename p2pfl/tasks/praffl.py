"""PraFFL's data sets, with a model for every preference between performance and fairness, or a plain classifier."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Any, Literal

from torch import nn

from p2pfl._util.binding import build, choose
from p2pfl.data.tabular.table import Kind
from p2pfl.errors import ConfigurationError
from p2pfl.fairness.fair_task import FairClassifier, Reported, classifier
from p2pfl.fairness.praffl import BODY, GroupedSamples, PrafflTask, Training, body
from p2pfl.learning.optimizers import OPTIMIZERS
from p2pfl.multiobjective.scalarisation import SmoothTchebycheff
from p2pfl.task import Part
from p2pfl.tasks.fairness import IID, pool_of

Table = Mapping[str, Any]
Model = Literal["preferences", "single", "constant", "single or constant"]
REPORTED: Mapping[str, Reported] = {"single": "model", "constant": "constant", "single or constant": "both"}
ADAM = {"name": "adam", "lr": 0.005}


def praffl(
    part: Part,
    seed: int,
    *,
    data: str = "synthetic",
    root: str = "",
    rows: int = 0,
    columns: dict[str, Kind] | None = None,
    sensitive: str | list[str] = "",
    partition: Table = IID,
    validation: float = 0.1,
    test: float = 0.3,
    official: bool = False,
    judged_on: Literal["own", "all"] = "own",
    model: Model = "preferences",
    communicated: int = 15,
    personal: int = 15,
    preferences: int = 64,
    gamma: float = 1.0,
    optimizer: Table = ADAM,
    batch_size: int = 128,
    measured: int = 1000,
    penalty: float = 0.0,
    kept: Literal["loss", "hypervolume"] = "loss",
) -> PrafflTask | FairClassifier:
    """Binary classification with a sensitive attribute: PraFFL (Ye, Kou and Tang 2025, "PraFFL: a preference-aware
    scheme in fair federated learning").

    A node's model has a shared part and a hypernetwork. The hypernetwork never leaves the node; it turns a preference
    into the rest of a classifier (see p2pfl.fairness.praffl). The reported metric is a hypervolume on the node's own
    test data: the one that error and demographic-parity disparity of the models for 1,000 preferences dominate. The
    model with the best validation hypervolume is kept.

    Args:
        data: "synthetic", a table with a schema (adult, bank, compas), or the path of a schema file
            (data.tabular.table).
        root: the folder of the data sets; by default the environment variable P2PFL_DATA.
        rows: number of rows of SYNTHETIC; 0 is 5,000.
        columns: changes to the schema's kinds of columns, for example { duration = "numeric" } of bank.
        sensitive: the attribute, or a list of one; by default the first of the schema. "sex+race" has a group for each
            combination.
        partition: { name = "iid" }, "stratified", "dirichlet" (alpha, by), or "proportions" (by, shares); see
            p2pfl.data.partition.group_partition.
        validation: fraction of a node's samples, excluding those for testing.
        test: fraction of all rows.
        official: true uses a table's own test part instead, if it has one.
        judged_on: the test samples of a node: its `own` part (default), or `all`.
        model: "single" makes a plain classifier, reported with the same measures, as PraFFL's baseline. Of the
            following options it uses `optimizer`, `batch_size`, `penalty` and `kept`, and an epoch is one pass.
            "constant" reports instead the classifier that gives all samples their more frequent label, "single or
            constant" the hypervolume of both together: what any method should exceed.
        communicated: tau_c, passes in which the shared part is trained, in each epoch of the policy.
        personal: tau_p, passes in which the hypernetwork is trained.
        preferences: number of preferences drawn for each step.
        gamma: gamma of the smooth Tchebycheff function (1/gamma) log sum_i exp(gamma L_i / lambda_i).
        optimizer: { name = "adam" } or "adamw" (lr, betas, eps, weight_decay, schedule), or "sgd" (lr, momentum,
            weight_decay, schedule), where schedule is { name = "cosine", rounds = 20 }, "linear", "step",
            "inverse" or "exponential"; see p2pfl.learning.schedules.
        batch_size: samples in one step of the optimiser.
        measured: number of preferences used to evaluate a model.
        penalty: factor of PraFFL's fairness loss, which is added to the cross-entropy of a "single" model.
        kept: criterion for the resulting "single" model of a run: the lowest validation "loss", or the greatest
            validation "hypervolume".

    Raises:
        ConfigurationError: an option is invalid, or the data cannot be used.
    """
    division = (partition, validation, test, official)
    if isinstance(sensitive, list):
        if len(sensitive) > 1:
            raise ConfigurationError(
                f'task.sensitive: PraFFL has one attribute; for all groups, write "{"+".join(sensitive)}"'
            )
        sensitive = "".join(sensitive)
    pool = pool_of(
        data,
        root,
        seed=seed,
        rows=rows,
        count=part.count,
        sensitive=[sensitive] if sensitive else (),
        division=division,
        columns=columns,
    )
    steps, how = choose("task.optimizer", optimizer, OPTIMIZERS)
    made = build("task.optimizer", steps, how)
    samples = pool.samples(part.index, judged_on == "all")
    if not 0 <= penalty < inf:
        raise ConfigurationError(f"task.penalty must be 0 or more, and finite, got {penalty}")
    if model != "preferences":
        return classifier(
            partial(_network, pool.features),
            samples,
            pool.counts[0],
            penalty,
            reported=REPORTED[model],
            kept=kept,
            optimizer=made,
            batch_size=batch_size,
            data_facts=pool.facts,
            row_encoding=pool.row_encoding(0.0),
        )
    scalarise = SmoothTchebycheff(gamma, divide=True)
    training = Training(communicated, personal, preferences, scalarise, made, batch_size, measured)
    own = {split: GroupedSamples(x, y[:, 0].contiguous(), y[:, 1].long()) for split, (x, y) in samples.items()}
    return PrafflTask(own, pool.counts[0], training, data_facts=pool.facts, row_encoding=pool.row_encoding(0.0))


def _network(features: int) -> nn.Module:
    """Return psi followed by one linear layer."""
    return nn.Sequential(*body(features), nn.Linear(BODY[-1], 1))
