"""Table of layers and modules of torch: stacked training gives the results of single training, or is refused.

For each module, a restart between two rounds changes no bit, and the exported tensors load by the documented line.
"""

import random
import warnings
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm
from torch.nn.utils.parametrizations import spectral_norm

from p2pfl._util.shared_work import sharing
from p2pfl.errors import ConfigurationError
from p2pfl.learning.batched_learner import BatchedLearner
from p2pfl.learning.optimizers import SGD
from p2pfl.learning.torch_task import classification
from p2pfl.queries import Evaluate, NodeQuery, Train
from p2pfl.random_streams import RandomStreams

N = (17, 21)  # samples of two nodes: the last batch of the first has one sample
BATCH = 8
SHAPES = {"table": (4,), "line": (2, 8), "picture": (2, 6, 6), "volume": (2, 4, 4, 4), "words": (5,), "steps": (5, 4)}


class Row(NamedTuple):
    """A module of the table.

    Attributes:
        reason: the beginning of the reason why it is trained one by one; "" if it is stacked.
        refused: the reason why it cannot be trained at all.
    """

    make: object
    inputs: str = "table"
    reason: str = ""
    refused: str = ""


class Around(nn.Module):
    """A layer between two linear ones: the outputs are logits of two classes.

    Args:
        shape: shape of a sample.
        call: computes from the layer and its inputs [n, ...].
        before: makes the layer before; by default one that keeps the shape.
    """

    def __init__(self, layer, shape, call=None):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(shape[-1]))
        self.layer = layer()
        self.call = call
        with torch.no_grad(), torch.random.fork_rng():
            width = self._middle(torch.rand(3, *shape)).flatten(1).shape[1]
        self.head = nn.Linear(width, 2)

    def _middle(self, x):
        x = x * self.scale
        return self.layer(x) if self.call is None else self.call(self.layer, x)

    def forward(self, x):
        return self.head(self._middle(x).flatten(1))


def around(layer, inputs="table", call=None):
    return partial(Around, layer, SHAPES[inputs], call)


def row(layer, inputs="table", reason="", call=None):
    return Row(around(layer, inputs, call), inputs, reason)


class Words(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.words = nn.Embedding(10, 4, **options)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


class Bag(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.words = nn.EmbeddingBag(10, 4, **options)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.words(x))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.body = kind(4, 6, batch_first=True, **options)
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 2)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


class Cells(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class KeepsHidden(nn.Module):
    """The hidden state of one batch is the start of the next."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2)
        self.hidden = None

    def forward(self, x):
        kept = self.hidden
        if kept is None or kept.shape[1] != len(x):
            kept = torch.zeros(1, len(x), 6)
        out, hidden = self.body(x, kept)
        self.hidden = hidden.detach()
        return self.head(out[:, -1])


class KeepsMean(nn.Module):
    """A mean over batches, in a float attribute."""

    def __init__(self):
        super().__init__()
        self.line, self.mean = nn.Linear(4, 2), 0.0

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * float(x.detach().mean())
        return self.line(x - self.mean)


class Annealed(nn.Module):
    def __init__(self, where="attribute"):
        super().__init__()
        self.line = nn.Linear(4, 2)
        if where == "buffer":
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        elif where == "float buffer":
            self.register_buffer("steps", torch.zeros(()))
        elif where == "not persistent":
            self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)
        else:
            self.steps = {"attribute": 0, "array": np.zeros(1, np.int64), "list": [0, 0], "dict": {"a": 0}}[where]
        self.where = where

    def forward(self, x):
        if self.training:
            if self.where in ("list", "dict"):
                self.steps[0 if self.where == "list" else "a"] += 1
            else:
                self.steps = self.steps + 1
        steps = self.steps
        if self.where in ("list", "dict"):
            steps = steps[0 if self.where == "list" else "a"]
        return self.line(x) * (1 + 0.1 * float(np.sum(steps) if self.where == "array" else steps))


class CountsInItsClass(nn.Module):
    steps = 0

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x):
        if self.training:
            type(self).steps += 1
        return self.line(x) * (1 + 0.1 * self.steps)


class CountsAlways(nn.Module):
    """It counts evaluations too, which must not change it."""

    def __init__(self):
        super().__init__()
        self.line, self.calls = nn.Linear(4, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.line(x) * (1 + 0.1 * self.calls)


class FirstBatch(nn.Module):
    """Its scale comes from the first batch."""

    def __init__(self):
        super().__init__()
        self.line, self.known = nn.Linear(4, 2), False
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        if self.training and not self.known:
            self.scale = 1 / (x.detach().std(0) + 0.1)
            self.known = True
        return self.line(x * self.scale)


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.seen = nn.Linear(4, 2), []

    def forward(self, x):
        if self.training:
            self.seen.append(float(x.detach().mean()))
        return self.line(x)


class Random(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.line, self.draw = nn.Linear(4, 2), draw

    def forward(self, x):
        return self.line(self.draw(self, x))


class OwnGenerator(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.line, self.kind = nn.Linear(4, 2), kind
        self.rng = {
            "torch": lambda: torch.Generator().manual_seed(3),
            "numpy": lambda: np.random.default_rng(3),
            "python": lambda: random.Random(3),
        }[kind]()

    def forward(self, x):
        if not self.training:
            return self.line(x)
        if self.kind == "torch":
            noise = float(torch.randn((), generator=self.rng))
        else:
            noise = self.rng.normal() if self.kind == "numpy" else self.rng.gauss(0, 1)
        return self.line(x * (1 + 0.1 * noise))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.decode(torch.tanh(self.encode(x)))))


class SharedLayer(nn.Module):
    """One submodule under two names."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.second(torch.relu(self.first(x))))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


class FrozenNorm(nn.Sequential):
    """Batch norm that always uses its running statistics."""

    def __init__(self):
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))

    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


class OwnNorm(nn.Module):
    """Normalisation over the batch by hand: one sample gives 0 / 0."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x):
        if self.training:
            x = (x - x.mean(0)) / x.std(0)
        return self.line(x)


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.rand(4, 2)) for _ in range(2)])
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(2))})
        self.layers = nn.ModuleDict({"a": nn.Linear(4, 4)})

    def forward(self, x):
        x = self.layers["a"](x)
        return x @ self.weights[0] + (x @ self.weights[1]).relu() + self.named["bias"]


class Masked(nn.Module):
    """Constants of several kinds: drawn when the module is made, not persistent, or None."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)
        self.register_buffer("order", torch.randperm(4))
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool), persistent=False)
        self.register_buffer("nothing", None)
        self.scale = np.random.uniform(0.5, 1)

    def forward(self, x):
        return self.line(x[:, self.order] * self.mask * self.scale)


class Attention(nn.Module):
    def __init__(self, dropout=0.1, need_weights=False):
        super().__init__()
        self.lift, self.need_weights = nn.Linear(1, 8), need_weights
        self.body, self.head = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        h = self.lift(x[:, :, None])
        return self.head(self.body(h, h, h, need_weights=self.need_weights)[0].mean(1))


class Block(nn.Module):
    """Attention by hand with dropout, followed by another dropout."""

    def __init__(self, again=True):
        super().__init__()
        self.lift, self.again = nn.Linear(1, 8), again
        self.q, self.k, self.v, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        h = self.lift(x[:, :, None])
        p = 0.2 if self.training else 0.0
        h = functional.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h), dropout_p=p)
        if self.again:
            h = functional.dropout(h.transpose(0, 1), p).transpose(0, 1)
        return self.head(h.mean(1))


class Layered(nn.Module):
    def __init__(self, dropout, decoder=False):
        super().__init__()
        self.lift, self.head = nn.Linear(1, 8), nn.Linear(8, 2)
        kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
        self.body, self.decoder = kind(8, 2, 16, batch_first=True, dropout=dropout), decoder

    def forward(self, x):
        h = self.lift(x[:, :, None])
        return self.head((self.body(h, h) if self.decoder else self.body(h)).mean(1))


def counting_hook():
    layer, count = nn.Linear(4, 2), [0]

    def hook(module, given, outputs):
        count[0] += module.training
        return outputs * (1 + 0.1 * count[0])

    layer.register_forward_hook(hook)
    return layer


calls = 0


class CountsInAGlobal(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x):
        global calls
        calls += self.training
        return self.line(x) * (1 + 0.1 * calls)


class Normalises(nn.Module):
    """Its weights get another memory in each pass, as in heads for face recognition."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x):
        if self.training:
            self.line.weight.data = functional.normalize(self.line.weight.data)
        return self.line(x)


class Teacher(nn.Module):
    """A moving average of its layer evaluates."""

    def __init__(self):
        super().__init__()
        self.line, self.mean = nn.Linear(4, 2), nn.Linear(4, 2).requires_grad_(False)

    def forward(self, x):
        if not self.training:
            return self.mean(x)
        for mean, own in zip(self.mean.parameters(), self.line.parameters(), strict=True):
            mean.data = 0.9 * mean.data + 0.1 * own.data
        return self.line(x)


class Squeezed(nn.Module):
    """A slip: with one sample, the outputs lack the dimension of samples."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x):
        return self.line(x[:, None]).squeeze()


class Hooked(nn.Module):
    """A hook that counts in an attribute."""

    def __init__(self):
        super().__init__()
        self.line, self.count = nn.Linear(4, 2), 0
        self.line.register_forward_hook(self.hook)

    def hook(self, module, given, outputs):
        if self.training:
            self.count += 1
        return outputs * (1 + 0.1 * self.count)

    def forward(self, x):
        return self.line(x)


def linear(wrap=None, **options):
    return lambda: (lambda layer: layer if wrap is None else wrap(layer, **options))(nn.Linear(4, 4))


def norm(kind=nn.BatchNorm1d, width=4, **options):
    return lambda: kind(width, **options)


BUFFERS = "layer layer ({}) changes its buffers in training"
ORDER = "module {} cannot be stacked: torch draws random numbers in another order"
BATCHING = "module {} cannot be stacked: "
ALONE = BATCHING.format("Recurrent")
CHANGES = "module {} changes {} in training"

TABLE = {
    "Linear": row(lambda: nn.Linear(4, 5)),
    "Bilinear": row(lambda: nn.Bilinear(4, 4, 3), call=lambda layer, x: layer(x, x)),
    "PReLU": row(nn.PReLU),
    "Softplus": row(nn.Softplus),
    "GELU": row(nn.GELU),
    "Softmax": row(lambda: nn.Softmax(1)),
    "RReLU": row(nn.RReLU, reason=BATCHING.format("Around")),
    "Dropout": row(nn.Dropout),
    "Dropout1d": row(nn.Dropout1d, "line"),
    "Dropout2d": row(nn.Dropout2d, "picture"),
    "Dropout3d": row(nn.Dropout3d, "volume"),
    "AlphaDropout": row(nn.AlphaDropout),
    "FeatureAlphaDropout": row(nn.FeatureAlphaDropout, "line"),
    "functional dropout in training": Row(partial(Random, lambda m, x: functional.dropout(x, 0.5, m.training))),
    "functional dropout always": Row(partial(Random, lambda m, x: functional.dropout(x, 0.5))),
    "noise": Row(partial(Random, lambda m, x: x + 0.1 * torch.randn_like(x))),
    "Gumbel softmax": Row(partial(Random, lambda m, x: functional.gumbel_softmax(x))),
    "NumPy's generator": Row(
        partial(Random, lambda m, x: x * np.random.uniform(0.5, 1)),
        reason="module Random draws numbers from the generator of NumPy",
    ),
    "Python's generator": Row(
        partial(Random, lambda m, x: x * random.uniform(0.5, 1)),
        reason="module Random draws numbers from the generator of Python",
    ),
    "stochastic depth": Row(
        partial(Random, lambda m, x: x if m.training and random.random() < 0.5 else functional.dropout(x, 0.5)),
        reason="module Random draws numbers from the generator of Python",
    ),
    "randperm": Row(
        partial(Random, lambda m, x: x[:, torch.randperm(4)]),
        reason="module Random cannot be stacked: torch cannot draw randperm",
    ),
    "own generator of torch": Row(partial(OwnGenerator, "torch"), reason=CHANGES.format("OwnGenerator", "rng")),
    "own generator of NumPy": Row(partial(OwnGenerator, "numpy"), reason=CHANGES.format("OwnGenerator", "rng")),
    "own generator of Python": Row(partial(OwnGenerator, "python"), reason=CHANGES.format("OwnGenerator", "rng")),
    "Conv1d": row(lambda: nn.Conv1d(2, 3, 3), "line"),
    "Conv2d": row(lambda: nn.Conv2d(2, 3, 3, padding=1), "picture"),
    "Conv2d, circular": row(lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), "picture"),
    "Conv3d": row(lambda: nn.Conv3d(2, 3, 2), "volume"),
    "ConvTranspose2d": row(lambda: nn.ConvTranspose2d(2, 3, 2), "picture"),
    "MaxPool2d": row(lambda: nn.MaxPool2d(2), "picture"),
    "AdaptiveAvgPool2d": row(lambda: nn.AdaptiveAvgPool2d(2), "picture"),
    "FractionalMaxPool2d": row(lambda: nn.FractionalMaxPool2d(2, output_size=3), "picture"),
    "LPPool2d": row(lambda: nn.LPPool2d(2, 2), "picture"),
    "MaxUnpool2d": row(
        lambda: nn.MaxPool2d(2, return_indices=True),
        "picture",
        call=lambda layer, x: functional.max_unpool2d(*layer(x), 2),
    ),
    "Upsample": row(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), "picture"),
    "PixelShuffle": row(lambda: nn.PixelShuffle(1), "picture"),
    "PixelUnshuffle": row(lambda: nn.PixelUnshuffle(2), "picture"),
    "ChannelShuffle": row(lambda: nn.ChannelShuffle(2), "picture"),
    "Unfold": row(lambda: nn.Unfold(2), "picture"),
    "Fold": row(lambda: nn.Fold((3, 3), (2, 2)), "line", call=lambda layer, x: layer(x.reshape(-1, 4, 4))),
    "ZeroPad2d": row(lambda: nn.ZeroPad2d(1), "picture"),
    "LocalResponseNorm": row(lambda: nn.LocalResponseNorm(2), "picture"),
    "LayerNorm": row(lambda: nn.LayerNorm(4)),
    "GroupNorm": row(lambda: nn.GroupNorm(2, 2), "picture"),
    "RMSNorm": row(lambda: nn.RMSNorm(4)),
    "InstanceNorm2d": row(lambda: nn.InstanceNorm2d(2), "picture"),
    "InstanceNorm2d with statistics": row(
        lambda: nn.InstanceNorm2d(2, track_running_stats=True), "picture", BUFFERS.format("InstanceNorm2d")
    ),
    "BatchNorm1d": row(norm(), reason=BUFFERS.format("BatchNorm1d")),
    "BatchNorm1d, momentum=None": row(norm(momentum=None), reason=BUFFERS.format("BatchNorm1d")),
    "BatchNorm1d, affine=False": row(norm(affine=False), reason=BUFFERS.format("BatchNorm1d")),
    "BatchNorm1d, track_running_stats=False": row(norm(track_running_stats=False)),
    "BatchNorm1d, frozen": Row(FrozenNorm),
    "BatchNorm2d": row(norm(nn.BatchNorm2d, 2), "picture", BUFFERS.format("BatchNorm2d")),
    "BatchNorm3d": row(norm(nn.BatchNorm3d, 2), "volume", BUFFERS.format("BatchNorm3d")),
    "normalisation by hand": Row(OwnNorm),
    "Embedding": Row(Words, "words"),
    "Embedding, padding_idx": Row(partial(Words, padding_idx=0), "words"),
    "Embedding, sparse": Row(partial(Words, sparse=True), "words", BATCHING.format("Words")),
    "Embedding, max_norm": Row(partial(Words, max_norm=0.5), "words", CHANGES.format("Words", "words.weight")),
    "EmbeddingBag": Row(Bag, "words"),
    "EmbeddingBag, max": Row(partial(Bag, mode="max"), "words"),
    "RNN": Row(partial(Recurrent, nn.RNN), "steps", ALONE),
    "GRU": Row(partial(Recurrent, nn.GRU), "steps", ALONE),
    "LSTM": Row(partial(Recurrent, nn.LSTM), "steps", ALONE),
    "LSTM, two layers with dropout": Row(partial(Recurrent, nn.LSTM, num_layers=2, dropout=0.3), "steps", ALONE),
    "GRU, both directions": Row(partial(Recurrent, nn.GRU, bidirectional=True), "steps", ALONE),
    "GRUCell": Row(partial(Cells, nn.GRUCell), "steps"),
    "LSTMCell": Row(partial(Cells, nn.LSTMCell), "steps", BATCHING.format("Cells")),
    "GRU that keeps its hidden state": Row(KeepsHidden, "steps", CHANGES.format("KeepsHidden", "hidden")),
    "MultiheadAttention": Row(Attention),
    "MultiheadAttention with weights": Row(partial(Attention, need_weights=True)),
    "attention and dropout": Row(Block, reason=ORDER.format("Block")),
    "attention alone": Row(partial(Block, again=False)),
    "TransformerEncoderLayer": Row(partial(Layered, 0.1), reason=ORDER.format("Layered")),
    "TransformerEncoderLayer without dropout": Row(partial(Layered, 0.0)),
    "TransformerDecoderLayer": Row(partial(Layered, 0.1, True), reason=ORDER.format("Layered")),
    "tied weights": Row(Tied),
    "shared layer": Row(SharedLayer),
    "weight norm": row(linear(parametrizations.weight_norm)),
    "weight norm by hooks": row(linear(weight_norm)),
    "spectral norm": row(linear(spectral_norm), reason="module Around changes layer.parametrizations"),
    "spectral norm by hooks": row(
        linear(nn.utils.spectral_norm), reason="module Around changes layer.weight_u, layer.weight_v"
    ),
    "orthogonal": row(linear(parametrizations.orthogonal)),
    "pruned": row(linear(prune.l1_unstructured, name="weight", amount=2)),
    "frozen parameters": Row(Frozen),
    "lists and dicts of parameters": Row(Lists),
    "constants": Row(Masked),
    "counter in an attribute": Row(Annealed, reason=CHANGES.format("Annealed", "steps")),
    "counter in a buffer": Row(partial(Annealed, "buffer"), reason=CHANGES.format("Annealed", "steps")),
    "counter in a float buffer": Row(partial(Annealed, "float buffer"), reason=CHANGES.format("Annealed", "steps")),
    "counter in a buffer that is not persistent": Row(
        partial(Annealed, "not persistent"), reason=CHANGES.format("Annealed", "steps")
    ),
    "counter in an array": Row(partial(Annealed, "array"), reason=CHANGES.format("Annealed", "steps")),
    "counter in a list": Row(partial(Annealed, "list"), reason=CHANGES.format("Annealed", "steps")),
    "counter in a dict": Row(partial(Annealed, "dict"), reason=CHANGES.format("Annealed", "steps")),
    "counter in the class": Row(CountsInItsClass, reason=CHANGES.format("CountsInItsClass", "class steps")),
    "counter of all calls": Row(CountsAlways, reason=CHANGES.format("CountsAlways", "calls")),
    "counter in a hook": Row(Hooked, reason=CHANGES.format("Hooked", "count")),
    "counter in a variable of a hook": Row(counting_hook, reason="module Linear changes _forward_hooks[0] in training"),
    "counter in a global variable": Row(CountsInAGlobal, reason="module CountsInAGlobal changes class forward in training"),
    "weights normalised in place": Row(Normalises, reason=CHANGES.format("Normalises", "line.weight")),
    "moving average of a layer": Row(Teacher, reason=CHANGES.format("Teacher", "mean.weight, mean.bias")),
    "squeeze": Row(Squeezed),
    "compiled": Row(lambda: torch.compile(nn.Linear(4, 2), backend="eager")),
    "scripted": Row(lambda: torch.jit.script(nn.Linear(4, 2)), refused="return the plain module"),
    "parallel": Row(lambda: nn.DataParallel(nn.Linear(4, 2)), refused="return the plain module"),
    "mean in an attribute": Row(KeepsMean, reason=CHANGES.format("KeepsMean", "mean")),
    "scale from the first batch": Row(FirstBatch, reason=CHANGES.format("FirstBatch", "scale, known")),
    "list that grows": Row(Grows, reason=CHANGES.format("Grows", "seen")),
    "lazy": Row(lambda: nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), refused="has no shape yet"),
    "float64": Row(lambda: nn.Linear(4, 2).double(), refused="does not take inputs"),
    "float64 buffer": Row(around(lambda: with_buffer(torch.float64)), refused="only float32 is supported"),
    "complex buffer": Row(around(lambda: with_buffer(torch.complex64)), refused="only float32 is supported"),
}


def with_buffer(dtype):
    layer = nn.Linear(4, 4)
    layer.register_buffer("extra", torch.zeros(2, dtype=dtype))
    return layer


def task(entry, count, seed):
    rng, shape = np.random.default_rng(seed), SHAPES[entry.inputs]

    def data(n):
        x = rng.normal(size=(n, *shape)).astype(np.float32)
        if entry.inputs == "words":
            x = rng.integers(0, 10, size=(n, *shape))
        return x, rng.integers(0, 2, n)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return classification(entry.make, data(count), data(6), data(7), optimizer=SGD(0.1, momentum=0.9), batch_size=BATCH)


def learners(entry):
    with sharing():  # one template, as for the nodes of a run
        return [task(entry, n, k).learner(RandomStreams(5, f"node-{k}")) for k, n in enumerate(N)]


SPLITS = "train", "validation", "test"


@pytest.fixture(scope="module", params=[name for name, entry in TABLE.items() if not entry.refused])
def alone(request):
    """Single learners of an entry after their first round; the tests of an entry share it.

    Attributes:
        start: initial model.
        models, figures: of each learner after round 1.
        tensors, outputs: of the first one: exported tensors, and outputs for its test data.
        first: the first learner, which only test_restart_changes_no_bit trains further.
    """
    entry = TABLE[request.param]
    team = learners(entry)
    task, start = team[0].task, team[0].task.initial(5)
    models = [one.train(start, round=1) for one in team]
    tensors, outputs = task.tensors(models[0], 5), None
    if not task.conduct.draws_in_evaluation:
        outputs = team[0].outputs(models[0], task.data["test"].x)
    figures = [one.evaluate([model], SPLITS)[0] for one, model in zip(team, models, strict=True)]
    team[0].evaluate([models[0], start], ("validation",))
    found = {"models": models, "figures": figures, "tensors": tensors, "outputs": outputs}
    return SimpleNamespace(entry=entry, task=task, start=start, first=team[0], **found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_stacked_training_is_that_of_single_nodes_or_refused(alone):
    entry = alone.entry
    if entry.reason:
        with pytest.raises(ConfigurationError) as refusal:
            BatchedLearner(learners(entry))
        assert str(refusal.value).startswith(entry.reason)
        return
    stack = BatchedLearner(learners(entry))
    together = stack.compute([NodeQuery(k, Train(alone.start, 1)) for k in range(len(N))])
    for one, other in zip(alone.models, together, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5)
    found = stack.compute([NodeQuery(k, Evaluate([alone.models[k]], SPLITS)) for k in range(len(N))])
    for one, (other,) in zip(alone.figures, found, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_restart_changes_no_bit(alone):
    if alone.task.conduct.uncarried:
        assert any("neither a checkpoint" in note for note in alone.task.module_notes)
        return
    first, middle = alone.first, alone.models[0]
    end = first.train(middle, round=2)
    again, _ = learners(alone.entry)
    assert again.train(middle, round=2).tobytes() == end.tobytes()
    assert again.evaluate([end], ("test",)) == first.evaluate([end], ("test",))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_exported_tensors_load_by_the_documented_line(alone):
    module, conduct, notes = alone.entry.make(), alone.task.conduct, alone.task.module_notes
    module.load_state_dict({key: torch.from_numpy(array) for key, array in alone.tensors.items()})
    if conduct.unsaved:
        assert any("files of the model lack" in n or "neither a checkpoint" in n for n in notes)
    elif conduct.drawn:
        assert any("draws scale when it is made" in note for note in notes)
    elif not conduct.draws_in_evaluation:
        with torch.no_grad():
            torch.testing.assert_close(module.eval()(alone.task.data["test"].x), alone.outputs)


@pytest.mark.parametrize("name", [name for name, entry in TABLE.items() if entry.refused])
def test_module_that_cannot_be_trained_is_refused(name):
    with pytest.raises(ConfigurationError, match=TABLE[name].refused):
        learners(TABLE[name])[0].task.layout  # noqa: B018


def test_table_has_sixty_modules():
    assert len(TABLE) >= 60


def test_parametrized_layers_are_parametrized():
    assert parametrize.is_parametrized(linear(spectral_norm)())
