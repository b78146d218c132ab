"""Adapters of a frozen transformer: the modules of a task have the adapters and the head, and share the rest.

The libraries are Hugging Face's `transformers` and `peft`, in the extra `adapters`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.func import functional_call

from p2pfl.errors import ConfigurationError, needs_extra

PREFIX = "base_model.model."  # of the names of tensors, from peft


class AdaptedModel(nn.Module):
    """Adapters and head of a transformer, float32. The frozen values belong to `whole`, which all nodes of a process share.

    They are not tensors of this module, so they are neither in its layout nor sent. An empty buffer whose name has their
    hash is in the layout instead; so nodes with different frozen values refuse each other.

    The modules of several nodes cannot be stacked, because torch's vmap does not suit the models of `transformers`.

    Args:
        whole: the model of peft, with any values for the adapters and the head.
        digest: the hash of the frozen values.
        pad: the token that fills up short texts; None if there is none.
    """

    stackable = False
    whole: nn.Module

    def __init__(self, whole: nn.Module, digest: str, pad: int | None) -> None:
        super().__init__()
        object.__setattr__(self, "whole", whole)  # an attribute that torch does not take for a submodule
        self._pad = pad
        _draw(whole)
        for name, parameter in whole.named_parameters():
            if parameter.requires_grad:
                _place(self, name.removeprefix(PREFIX), nn.Parameter(parameter.detach().clone()))
        self.register_buffer(f"frozen-{digest}", torch.empty(0))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, [n, classes], for token numbers, int64 [n, length]."""
        whole = self.whole.to(tokens.device)
        whole.train(self.training)
        values: dict[str, Tensor] = {f"{PREFIX}{name}": parameter for name, parameter in self.named_parameters()}
        inputs = {"input_ids": tokens} | ({} if self._pad is None else {"attention_mask": (tokens != self._pad).long()})
        logits: Tensor = functional_call(whole, values, (), inputs).logits
        return logits


class AdaptedModelFactory:
    """Factory of the modules of nodes; see `with_adapters`.

    Attributes:
        config: configuration of peft.
    """

    def __init__(self, base: Callable[[], Any], config: Any) -> None:
        self._base = base
        self.config = config

    def __call__(self) -> AdaptedModel:
        return AdaptedModel(self.whole, self._digest, self.whole.config.pad_token_id)

    @cached_property
    def whole(self) -> Any:
        """The model of peft, whose frozen values all modules share."""
        with needs_extra("a task with adapters", "adapters"):
            from peft import get_peft_model

        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # a base that reads no file is then the same on all nodes
            whole = get_peft_model(self._base(), self.config)
        if not any(parameter.requires_grad for parameter in whole.parameters()):
            raise ConfigurationError("the configuration of peft leaves nothing to train")
        return whole

    @cached_property
    def _digest(self) -> str:
        hash = blake3()
        for name, parameter in self.whole.named_parameters():
            if not parameter.requires_grad:
                hash.update(f"{name} {list(parameter.shape)} {parameter.dtype}\n".encode())
                hash.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
        return hash.hexdigest(8)


def with_adapters(base: Callable[[], Any], config: Any) -> AdaptedModelFactory:
    """Return a factory of modules for a task that trains adapters of a transformer.

    The base model is made once in a process, and its values are shared by all nodes that use the same factory. Make the
    factory at the top of a module, therefore, and not in the function of the task. Peers receive the adapters and the
    head; keep the head on its node with `private`, for example `private=["classifier"]`. Policies average the two factors
    of LoRA separately, which is not the average of their products.

    Args:
        base: makes the model of `transformers`, for example with `AutoModelForSequenceClassification.from_pretrained`. Its
            inputs are token numbers [n, length]; tokens equal to `config.pad_token_id` are masked.
        config: configuration of peft, for example `peft.LoraConfig(task_type="SEQ_CLS", r=8)`.
    """
    return AdaptedModelFactory(base, config)


def _draw(whole: nn.Module) -> None:
    """Draw initial values for everything that is trained, from torch's generator."""
    modules: list[Any] = list(whole.modules())
    for module in modules:
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            module.reset_parameters()
    for module in modules:
        if hasattr(module, "reset_lora_parameters"):  # the second factor is 0
            for name in module.active_adapters:
                module.reset_lora_parameters(name, True)


def _place(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register a parameter under a name with dots, in submodules."""
    *parts, last = name.split(".")
    for part in parts:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    module.register_parameter(last, parameter)
