"""Inversion: training samples from the first model that a node releases.

Everybody knows the model with which a federation starts, so that the change of a node's first model is known exactly. A row
of the first linear layer changes along the mean of the inputs that activate its unit, weighted by their slopes; where one
input alone activates the unit, the row is this input, up to a factor. All rows are therefore guesses of inputs. (The
difference of the bias gives the factor and the sign; a correlation needs neither.)

A node with few samples is attacked by optimisation as well (Geiping et al. 2020): inputs and soft labels are sought whose
gradient at the start points in the direction of the change, by the cosine of the angle between the two.

What counts as found. A training image whose correlation with some guess exceeds FOUND is found. Images of one kind resemble
each other, and many guesses fit something by chance. So the same guesses are compared with strangers: images of the same
kind that the node did not train on. The area under the curve that separates the best correlations of training images from
those of strangers is 0.5 if a guess tells nothing about the training images, and chance is what strangers reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import cosine_similarity

from p2pfl.learning.torch_problem import Samples
from p2pfl.learning.torch_task import TorchTask
from p2pfl.random_streams import RandomStreams
from p2pfl.sim.audit.releases import Attacked, Release
from p2pfl.sim.audit.statistics import auc, mean_with_interval

FOUND = 0.95  # correlation with a guess from which an image is found
MOST_STRANGERS = 2000
MOST_NODES = 32  # that are attacked by rows
OPTIMISED = 4  # nodes that are attacked by optimisation,
FEW = 8  # if they have at most so many samples
LARGEST = 2**18  # and their models at most so many values
STEPS, RATE = 300, 0.05  # of the optimisation
SHOWN = 8  # pictures of a row of an audit


class Picture(NamedTuple):
    """Training image and the closest guess, [height, width] each, from 0 (black) to 1 (white), and their correlation."""

    own: np.ndarray
    guess: np.ndarray
    correlation: float


class Guessed(NamedTuple):
    """Guesses of the samples of one node, compared with its samples and with strangers.

    Attributes:
        best: the greatest correlation of each training sample with a guess, [n].
        strangers: the same of each stranger, [s].
        closest: the guess with the greatest correlation for each training sample, [n, d].
    """

    best: np.ndarray
    strangers: np.ndarray
    closest: np.ndarray


def invert(
    attacked: Attacked, tasks: Sequence[TorchTask], releases: Sequence[Release], seed: int
) -> tuple[dict[str, Any], list[Picture]]:
    """Attack the releases of the first round.

    Returns:
        What was found, for audit.json, by the way of guessing; and pictures, if samples are images.
    """
    found: dict[str, Any] = {}
    pictures: list[Picture] = []
    first = [release for release in releases if release.round == 1 and release.start is not None]
    guesses: dict[str, list[tuple[int, Guessed]]] = {"rows": [], "optimisation": []}
    for release in first[:MOST_NODES]:
        by_rows = rows(attacked, release)
        if by_rows is not None:
            guesses["rows"].append((release.node, compare(by_rows, tasks, release.node)))
    small = [each for each in first if tasks[each.node].n_samples <= FEW and len(each.model) <= LARGEST]
    for release in small[:OPTIMISED]:
        sought = optimise(attacked, release, tasks[release.node].n_samples, RandomStreams(seed, f"audit {release.node}"))
        guesses["optimisation"].append((release.node, compare(sought, tasks, release.node)))
    for how, each in guesses.items():
        if each:
            found[how] = summary([guessed for _, guessed in each])
    if guesses["rows"]:
        node, most = max(guesses["rows"], key=lambda each: float(np.mean(each[1].best)))
        pictures = pictures_of(tasks[node].data["train"].x.numpy(), most)
    return found, pictures


def summary(guessed: Sequence[Guessed]) -> dict[str, Any]:
    """Return what guesses have found, over all nodes."""
    best, strangers = (np.concatenate([getattr(each, of) for each in guessed]) for of in ("best", "strangers"))
    areas = [auc(each.best, each.strangers) for each in guessed]
    middle, low, high = mean_with_interval(areas)
    return {
        "nodes": len(guessed),
        "images": len(best),
        "found": float(np.mean(best > FOUND)),
        "found_by_chance": float(np.mean(strangers > FOUND)),
        "correlation": float(np.mean(best)),
        "correlation_by_chance": float(np.mean(strangers)),
        "auc": middle,
        "auc_interval": [max(0.0, low), min(1.0, high)],
    }


def rows(attacked: Attacked, release: Release) -> np.ndarray | None:
    """Return the guesses from the first layer, [rows, d]; None if the module does not begin with a linear layer."""
    if not attacked.chain or release.start is None:
        return None
    layer = attacked.chain[0]
    change = (release.model - release.start).astype(np.float64)
    matrix = change[slice(*layer.weight)].reshape(layer.shape)
    if layer.bias is not None:
        matrix = matrix * np.sign(change[slice(*layer.bias)])[:, None]
    moved: np.ndarray = matrix[np.abs(matrix).max(1) > 0]
    return moved


def optimise(attacked: Attacked, release: Release, n_samples: int, streams: RandomStreams) -> np.ndarray:
    """Return guesses of the samples whose joint gradient at the start has the direction of the change, [n, d]."""
    assert release.start is not None
    n, start = attacked.task.layout.n_trained, torch.from_numpy(release.start)
    wanted = torch.from_numpy(release.start - release.model)[:n]
    shape = attacked.task.data["train"].x.shape[1:]
    draws = streams.generator(0, "guesses")
    x = torch.from_numpy(draws.standard_normal((n_samples, *shape), np.float32)).requires_grad_()
    outputs = attacked.outputs(start, x.detach()).shape
    classes = not attacked.task.data["train"].y.is_floating_point()
    y = torch.from_numpy(draws.standard_normal(tuple(outputs), np.float32) / 10).requires_grad_()
    adam = torch.optim.Adam([x, y], RATE)
    place = start[:n].clone().requires_grad_()
    for _ in range(STEPS):
        adam.zero_grad()
        whole = torch.cat([place, start[n:]])
        loss = attacked.task.loss(attacked.outputs(whole, x), y.softmax(1) if classes else y).mean()
        (gradient,) = torch.autograd.grad(loss, place, create_graph=True)
        (1 - cosine_similarity(gradient, wanted, dim=0)).backward()  # type: ignore[no-untyped-call]
        adam.step()
    guesses: np.ndarray = x.detach().flatten(1).numpy().astype(np.float64)
    return guesses


def compare(guesses: np.ndarray, tasks: Sequence[TorchTask], node: int) -> Guessed:
    """Compare guesses with the samples of a node, and with strangers."""
    own = tasks[node].data["train"].x.flatten(1).numpy()
    others = strangers(tasks, node).x.flatten(1).numpy()
    rows = standard(guesses)
    with_own = standard(own) @ rows.T
    best = with_own.argmax(1)
    return Guessed(with_own.max(1), (standard(others) @ rows.T).max(1), guesses[best])


def strangers(tasks: Sequence[TorchTask], node: int) -> Samples:
    """Return samples of the same kind that a node does not train on: those for its test and validation.

    A task without such samples has those of other nodes; a sample that the node has too is left out.
    """
    data = tasks[node].data
    held = [data[split] for split in ("test", "validation") if split in data and len(data[split].x)]
    if not held:
        held = [tasks[other].data["train"] for other in range(len(tasks)) if other != node]
    x, y = torch.cat([each.x for each in held]), torch.cat([each.y for each in held])
    known = {row.tobytes() for row in data["train"].x.flatten(1).numpy()}
    kept = [k for k, row in enumerate(x.flatten(1).numpy()) if row.tobytes() not in known][:MOST_STRANGERS]
    return Samples(x[kept], y[kept])


def standard(values: np.ndarray) -> np.ndarray:
    """Return rows with a mean of 0 and a norm of 1, so that products are correlations; 0 for a constant row."""
    centred = values.astype(np.float64) - values.mean(1, keepdims=True, dtype=np.float64)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    scaled: np.ndarray = centred / np.where(norms > 0, norms, 1.0)
    return scaled


def pictures_of(x: np.ndarray, guessed: Guessed) -> list[Picture]:
    """Return the training images with the greatest correlations, beside the closest guesses; [] if x has no images."""
    shape = image_shape(x.shape[1:])
    if shape is None:
        return []
    found = []
    for k in np.argsort(-guessed.best)[:SHOWN].tolist():
        pair = [each.reshape(-1, *shape)[0] for each in (x[k], guessed.closest[k])]
        own, guess = (np.clip((each - each.min()) / max(float(np.ptp(each)), 1e-12), 0, 1) for each in pair)
        found.append(Picture(own, guess, float(guessed.best[k])))
    return found


def image_shape(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return the height and the width of samples of a shape; None if they are no images.

    Rows of a square number of values count as square images of one channel.
    """
    if len(shape) >= 2:
        return int(shape[-2]), int(shape[-1])
    side = round(float(np.sqrt(shape[0])))
    return (side, side) if side * side == shape[0] and side > 2 else None
