"""Choice of a kernel: what computes the gradients of a stack of models, and the kernel for any module.

Chains of linear layers, and of convolutions before them, have hand-written gradients. The functions in the first part
describe such a chain by the places of its tensors in the flat vector; None stands for any other module. That uses
VmapKernel, with torch's `vmap` over the models, after a check that the stack computes what single models compute.

On a GPU, a gradient of small networks starts a hundred short computations. Python takes longer to start them than the GPU to
compute them. GraphedKernel records them once for each size of a stack, as a CUDA graph; a replay starts all at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from p2pfl.errors import ConfigurationError
from p2pfl.learning.kernels.batched_gradient import BatchedGradient
from p2pfl.learning.kernels.convolution_kernel import LARGEST, Block, ConvolutionKernel, largest_input
from p2pfl.learning.kernels.dense_kernel import DenseKernel, Layer
from p2pfl.learning.losses import cross_entropy, squared_error
from p2pfl.learning.module_probe import structure
from p2pfl.learning.modules import flatten, seeded
from p2pfl.learning.row_randomness import RowGenerators
from p2pfl.learning.torch_problem import TorchProblem

MOST_CONVOLUTION = 500_000  # FLOP per sample above which torch's grouped convolutions are slower than a loop over nodes
FEWEST_MODELS = 4  # that must fit into the cache for their convolutions to be faster together than one after another
FEWEST_SAMPLES = 8  # whose convolutions must fit into the memory of a kernel
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
Parts = Sequence[tuple[str, nn.Module]]
"""Layers with the beginnings of their names in the state of the module: "" or with a dot at the end."""
Places = Mapping[str, tuple[int, int]]
"""Places of tensors in the flat vector, by name."""
ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}
SEEN = 4  # gradients of a size before it is recorded
LARGEST_RECORDED = 2**21  # values of models, 8 MiB: with more, the copy to where the graph reads takes longer than starting
MOST = 2**24  # values of samples of all recorded sizes; the memory of their convolutions is some fifty times as large
Size = tuple[int, int]
"""Numbers of models and of samples for each."""
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
LARGEST_ERROR = 1e-3  # of a stacked result, relative to the greatest value: rounding gives some 1e-6
SMALLEST = 1e-6  # error of values near 0
Tensors = dict[str, Tensor]


def kernel_for(task: TorchProblem, device: torch.device, by_hand: bool = True, seed: int = 0) -> BatchedGradient:
    """Return the fastest kernel for a task's module.

    Args:
        by_hand: whether chains of layers may use the hand-written gradients.
        seed: the federation's; a module may draw constants from it.

    Raises:
        ConfigurationError: the module cannot be stacked (it couples the samples of a batch, or torch cannot stack it), or
            would be slower when stacked.
    """
    if not getattr(task.template, "stackable", True):
        raise ConfigurationError(f"module {type(task.template).__name__} shares parameters with the modules of other nodes")
    kernel = kernel_by_hand(task, device) if by_hand else None
    if device.type == "cpu" and _is_slower_together(task, kernel):
        raise ConfigurationError("large convolutions are computed one by one on a CPU")
    if kernel is None:
        return VmapKernel(task, device, seed)
    if _is_current_gpu(device) and not kernel.random and task.objectives is None:
        return GraphedKernel(kernel, partial(kernel_by_hand, task, device))
    return kernel


def _is_current_gpu(device: torch.device) -> bool:
    """Return whether a device is the GPU on which torch records graphs."""
    return device.type == "cuda" and (device.index is None or device.index == torch.cuda.current_device())


def kernel_by_hand(task: TorchProblem, device: torch.device) -> DenseKernel | ConvolutionKernel | None:
    """Return the kernel with a hand-written gradient for a task's module; None if there is none."""
    layers = dense_chain(task)
    return convolution_kernel(task, device) if layers is None else DenseKernel(task, layers)


def convolution_kernel(task: TorchProblem, device: torch.device) -> ConvolutionKernel | None:
    """Return the kernel for a task whose module is a chain of convolutions; None for any other.

    Convolutions of very large images are left to torch, because the copies of their inputs would take much memory.
    """
    network = convolution_chain(task)
    if network is None or device.type not in ("cpu", "cuda") or FEWEST_SAMPLES * largest_input(network[0]) > LARGEST:
        return None
    return ConvolutionKernel(task, *network, device)


def _is_slower_together(task: TorchProblem, kernel: BatchedGradient | None) -> bool:
    """Return whether a CPU computes the models of a task faster one by one."""
    if isinstance(kernel, ConvolutionKernel):
        return kernel.models_at_once(task.batch_size) < FEWEST_MODELS
    return kernel is None and convolution_flops(task) > MOST_CONVOLUTION


def convolution_flops(task: TorchProblem) -> int:
    """Return the FLOP of a task's module in convolutions for one sample."""
    if not any(isinstance(part, CONVOLUTIONS) for part in task.template.modules()):
        return 0
    from torch.utils.flop_counter import FlopCounterMode

    module, x = deepcopy(task.template).eval(), task.data["train"].x
    with FlopCounterMode(display=False) as counter, torch.no_grad(), seeded(0):
        module(x[:2])  # two, because batch norm without running statistics does not take one
    return int(counter.get_flop_counts()["Global"].get(torch.ops.aten.convolution, 0)) // len(x[:2])


def dense_chain(task: TorchProblem) -> list[Layer] | None:
    """Return the layers of a chain of linear layers with ReLU or tanh between them; None for any other module.

    Dropout may follow ReLU.
    """
    parts, places = _parts(task), _places(task)
    if places is None:
        return None
    if parts and _flattens(parts[0][1]):
        return _layers(parts[1:], places)
    return _layers(parts, places) if task.data["train"].x.ndim == 2 else None


def convolution_chain(task: TorchProblem) -> tuple[list[Block], list[Layer]] | None:
    """Return the blocks of convolutions and the linear layers of a chain; None for any other module.

    Between them is an `nn.Flatten`. The loss is cross-entropy or squared error. Convolutions have neither groups nor
    dilation, and are padded with zeros. Pooling takes the maxima of windows that do not overlap.
    """
    x = task.data["train"].x
    if x.ndim != 4 or task.objectives is not None:
        return None
    parts, places = _parts(task), _places(task)
    if places is None:
        return None
    before = list(takewhile(lambda part: not _flattens(part[1]), parts))
    layers = _layers(parts[len(before) + 1 :], places)
    blocks = _blocks(before, places, (int(x.shape[2]), int(x.shape[3])))
    return (blocks, layers) if blocks and layers and not any(layer.dropout for layer in layers) else None


def _parts(task: TorchProblem) -> Parts:
    return list(_leaves("", task.template))


def _leaves(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from _leaves(f"{prefix}{name}.", child)


def _places(task: TorchProblem) -> Places | None:
    """Return the places of a task's tensors; None if its loss or its buffers need `torch.func`."""
    layout = task.layout
    if task.objectives is None and task.loss not in (cross_entropy, squared_error):
        return None
    if layout.n_trained != layout.size:
        return None
    return {name: (start, stop) for name, start, stop, _ in layout.places}


def _flattens(part: nn.Module) -> bool:
    return isinstance(part, nn.Flatten) and (part.start_dim, part.end_dim) == (1, -1)


def _layers(parts: Parts, places: Places) -> list[Layer] | None:
    layers: list[Layer] = []
    for position, (prefix, part) in enumerate(parts):
        if type(part) is nn.Linear and (position == 0 or layers[-1].activation):
            found = _tensors(prefix, part, places)
            if found is None:
                return None
            layers.append(Layer(*found, (part.out_features, part.in_features)))
        elif type(part) in ACTIVATIONS and layers and not layers[-1].activation:
            layers[-1] = replace(layers[-1], activation=ACTIVATIONS[type(part)])
        elif type(part) is nn.Dropout and layers and layers[-1].activation == "relu" and not layers[-1].dropout:
            if part.p == 1:  # torch draws no numbers
                return None
            layers[-1] = replace(layers[-1], dropout=part.p)
        else:
            return None
    return layers if layers and not layers[-1].activation else None


def _blocks(parts: Parts, places: Places, size: tuple[int, int]) -> list[Block] | None:
    blocks: list[Block] = []
    for prefix, part in parts:
        block: Block | None = None
        if type(part) is nn.Conv2d:
            block = _convolution(prefix, part, places, blocks[-1].output if blocks else size)
            blocks += [] if block is None else [block]
        elif blocks and type(part) in ACTIVATIONS and not blocks[-1].activation:
            block = blocks[-1] = replace(blocks[-1], activation=ACTIVATIONS[type(part)])
        elif blocks and type(part) is nn.MaxPool2d and blocks[-1].pool == (1, 1) and _is_plain_pool(part):
            block = blocks[-1] = replace(blocks[-1], pool=_pair(part.kernel_size))
        if block is None or min(block.output) < 1:
            return None
    return blocks


def _convolution(prefix: str, part: nn.Conv2d, places: Places, size: tuple[int, int]) -> Block | None:
    found = _tensors(prefix, part, places)
    plain = part.groups == 1 and _pair(part.dilation) == (1, 1) and part.padding_mode == "zeros"
    if found is None or not plain or part.padding == "same":
        return None
    padding = (0, 0) if isinstance(part.padding, str) else _pair(part.padding)
    shape = (part.out_channels, part.in_channels, *_pair(part.kernel_size))
    return Block(*found, shape, size, stride=_pair(part.stride), padding=padding)


def _is_plain_pool(part: nn.MaxPool2d) -> bool:
    """Return whether windows do not overlap and have no padding."""
    plain = not (part.ceil_mode or part.return_indices) and _pair(part.dilation) == (1, 1)
    return plain and _pair(part.stride) == _pair(part.kernel_size) and _pair(part.padding) == (0, 0)


def _tensors(
    prefix: str, part: nn.Linear | nn.Conv2d, places: Places
) -> tuple[tuple[int, int], tuple[int, int] | None] | None:
    """Return the places of a layer's weight and bias; None if it shares them with another layer."""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in places or (part.bias is not None and bias not in places):
        return None
    return places[weight], places[bias] if part.bias is not None else None


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


class GraphedKernel:
    """Kernel on a GPU that replays the gradients of another one, which draws no random numbers and has no objectives.

    Args:
        kernel: the other one.
        make: creates another of its kind. Each recorded size has its own, whose memory its graph reads and writes.
    """

    random = False

    def __init__(self, kernel: BatchedGradient, make: Callable[[], BatchedGradient | None]) -> None:
        self._kernel = kernel
        self._make = make
        self.alignment = kernel.alignment
        self.chunk = kernel.chunk
        self._seen: Counter[Size] = Counter()
        self._recordings: dict[Size, Recording] = {}
        self._recorded = 0  # values of their samples
        self._pool: Any = None  # memory of all graphs: they are never replayed at the same time

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        if flat.numel() > LARGEST_RECORDED:
            return self._kernel.gradient(flat, x, y)
        size = len(flat), x.shape[1]
        recording = self._recordings.get(size)
        if recording is None:
            self._seen[size] += 1
            if self._seen[size] <= SEEN or self._recorded + x.numel() > MOST:
                return self._kernel.gradient(flat, x, y)
            self._recorded += x.numel()
            kernel = self._make()
            assert kernel is not None
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            recording = self._recordings[size] = Recording(kernel, flat, x, y, self._pool)
        return recording.gradient(flat, x, y)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        return self._kernel.outputs(flat, x)


class Recording:
    """Recorded gradient of a stack of one size.

    Args:
        kernel: computes it. It must not be used elsewhere.
        flat, x, y: a stack of this size, on the GPU; see `BatchedGradient.gradient`.
        pool: handle of the memory for the graph's intermediate values.
    """

    def __init__(self, kernel: BatchedGradient, flat: Tensor, x: Tensor, y: Tensor, pool: Any) -> None:
        self._kernel = kernel  # keeps the memory that the graph uses
        self._inputs = flat.clone(), x.clone(), y.clone()
        here, aside = torch.cuda.current_stream(flat.device), torch.cuda.Stream(flat.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            kernel.gradient(*self._inputs)  # allocates the kernel's memory and the libraries' own outside the graph
        here.wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._gradient = kernel.gradient(*self._inputs)

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient; the next call overwrites it."""
        for own, given in zip(self._inputs, (flat, x, y), strict=True):
            own.copy_(given)
        self._graph.replay()
        return self._gradient


class VmapKernel:
    """Kernel for any module without state that changes in training.

    Args:
        seed: the federation's; a module may draw constants from it.

    Attributes:
        random: whether a training draws random numbers.
        random_outputs: whether an evaluation does.

    Raises:
        ConfigurationError: torch cannot stack the module, or computes something else when it is stacked.
    """

    alignment = 0
    chunk = 2**18  # 1 MiB, which fits into the cache

    def __init__(self, task: TorchProblem, device: torch.device, seed: int = 0) -> None:
        _check_conduct(task)
        layout = task.layout
        training = deepcopy(task.make(seed)).to(device).train()
        evaluating = deepcopy(training).eval()

        def loss(trained: Tensors, rest: Tensors, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
            return task.batch_loss(functional_call(training, trained | rest, (x,)), y, weights)

        def outputs(tensors: Tensors, x: Tensor) -> Tensor:
            result: Tensor = functional_call(evaluating, tensors, (x,))
            return result

        self._layout = layout
        self._trained = [name for name, _, stop, _ in layout.places if stop <= layout.n_trained]
        dimensions = (0, 0, 0, 0, None if task.objectives is None else 0)
        self._loss, self._single_outputs = loss, outputs
        self._gradients = vmap(grad(loss), in_dims=dimensions, randomness="different")
        self.random_outputs = task.conduct.draws_in_evaluation
        self._outputs = vmap(outputs, randomness="different" if self.random_outputs else "error")
        self.random = self._try(task, device, flatten(training.cpu(), layout, task.conduct.state))
        self._training = training.to(device)
        self._structure = self._versions()

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        tensors = self._tensors(flat)
        trained = {name: tensors.pop(name) for name in self._trained}
        gradients = self._gradients(trained, tensors, x, y, weights)
        return torch.cat([gradients[name].reshape(len(flat), -1) for name in self._trained], 1)

    def _single_gradient(self, flat: Tensor, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """Return the gradient of one model, [n], from autograd, as a learner that trains alone computes it."""
        tensors = self._tensors(flat)
        trained = {name: tensors.pop(name).clone().requires_grad_() for name in self._trained}
        loss = self._loss(trained, tensors, x, y, weights)
        gradients = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
        return torch.cat([gradient.to_dense().flatten() for gradient in gradients])

    def check_unchanged(self) -> None:
        """Raise ConfigurationError if trainings have changed attributes or buffers of the module, which all nodes share."""
        if self._versions() != self._structure:
            raise ConfigurationError(
                f"module {type(self._training).__name__} changes its state, but not in the first two steps; set"
                ' trainer = "one-by-one", so that each node has a state of its own'
            )

    def _versions(self) -> tuple[Any, ...]:
        buffers = tuple((name, id(b), b._version) for name, b in self._training.named_buffers())  # noqa: SLF001
        return structure(self._training), buffers

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        return self._outputs(self._tensors(flat), x)

    def _tensors(self, flat: Tensor) -> Tensors:
        found = self._layout.unflatten(flat)
        return {name: found[name] for name in found if name not in self._layout.local}

    def _try(self, task: TorchProblem, device: torch.device, start: np.ndarray) -> bool:
        """Compare two models on real batches with single ones, before the training.

        Returns:
            Whether the training draws random numbers.
        """
        name, (x, y) = type(task.template).__name__, task.data["train"]
        count = max(1, min(task.batch_size, len(x) - 1)) if len(x) > 1 else 1
        pairs = [torch.stack([part[:count], part[-count:]]).to(device) for part in (x, y)]
        if count < task.conduct.least:
            pairs = [pair.repeat_interleave(2, 1) for pair in pairs]
        xs, ys = pairs
        flat = torch.from_numpy(start).to(device).repeat(2, 1)
        flat[1] *= 0.9
        own, generators = task.weights(device), RowGenerators([0, 1], device)
        weights = None if own is None else torch.stack([own, own])
        try:
            with generators.drawing(range(2)):
                gradients = self.gradient(flat, xs, ys, weights)
            with torch.no_grad(), self.drawing([0, 1], device):
                outputs = self.outputs(flat, xs)
        except (RuntimeError, NotImplementedError, ValueError, ConfigurationError) as error:
            reason = str(error).strip().splitlines()[0].partition(". ")[0]
            raise ConfigurationError(f"module {name} cannot be stacked: {reason}") from error
        if generators.used and device.type not in ("cpu", "cuda"):
            raise ConfigurationError("modules with random layers are stacked on a CPU or with CUDA only")
        for k in range(2):
            with seeded(k, device, beyond_torch=False):
                single = self._single_gradient(flat[k], xs[k], ys[k], own)
            with torch.no_grad(), seeded(k, device, beyond_torch=False):
                alone = self._single_outputs(self._tensors(flat[k]), xs[k])
            if _differ(gradients[k], single) or _differ(outputs[k], alone):
                draws = "draws random numbers in another order" if generators.used else "gives other results"
                raise ConfigurationError(f"module {name} cannot be stacked: torch {draws} when it is stacked")
        return generators.used

    @contextmanager
    def drawing(self, seeds: Sequence[int], device: torch.device) -> Iterator[None]:
        """Draw the numbers of evaluations in this block from a generator for each row."""
        if not self.random_outputs:
            yield
            return
        with RowGenerators(seeds, device).drawing(range(len(seeds))):
            yield


def _check_conduct(task: TorchProblem) -> None:
    """Raise ConfigurationError if a module changes its state in training, or draws from other generators than torch's."""
    module, conduct = task.template, task.conduct
    if conduct.changed:
        name = conduct.changed[0]
        part = next((part for key, part in module.named_modules() if key == name.rpartition(".")[0]), module)
        if isinstance(part, NORMS):
            raise ConfigurationError(
                f"layer {name.rpartition('.')[0] or 'itself'} ({type(part).__name__}) changes its buffers in training;"
                " GroupNorm and LayerNorm do not"
            )
        raise ConfigurationError(f"module {type(module).__name__} changes {', '.join(conduct.changed[:3])} in training")
    if conduct.others:
        raise ConfigurationError(
            f"module {type(module).__name__} draws numbers from the generator of {' and '.join(conduct.others)}; torch's"
            " can be stacked"
        )


def _differ(some: Tensor, others: Tensor) -> bool:
    return bool((some - others).abs().max() > LARGEST_ERROR * others.abs().max() + SMALLEST)
