"""Adapters of a tiny transformer with random weights. They skip without the extra `adapters`.

Continuous integration installs it in a job of its own.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from p2pfl.errors import ConfigurationError, MissingRequirementError
from p2pfl.learning.adapters import with_adapters
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.api import simulate
from p2pfl.task import Part

EXAMPLE = Path(__file__).parents[3] / "examples" / "adapters.py"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]
FEW = {"nodes": 4, "rounds": 2}


@pytest.fixture
def example(monkeypatch):
    """Return the example as a module; nothing may be downloaded."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("transformers", reason="needs the extra adapters")
    pytest.importorskip("peft", reason="needs the extra adapters")
    spec = importlib.util.spec_from_file_location("adapters_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_example_is_short():
    code = EXAMPLE.read_text().split('"""')[2]
    assert len([line for line in code.splitlines() if line.strip()]) < 40


def test_task_has_adapters_and_head_and_shares_the_rest(example):
    one, other = (example.texts(Part(k, 6), 0) for k in range(2))
    names = [name for name, _ in one.layout.shapes]
    assert all("lora_" in name or name.startswith(("classifier.", "frozen-")) for name in names)
    assert [name.split(".")[0] for name in one.layout.private] == ["classifier", "classifier"]
    frozen = sum(p.numel() for p in example.adapted.whole.parameters() if not p.requires_grad)
    assert one.layout.size < frozen / 4
    modules = [task.module() for task in (one, other)]
    places = [{id(p) for p in module.parameters()} for module in modules]
    assert not places[0] & places[1]
    assert modules[0].whole is modules[1].whole


def test_initial_model_depends_on_seed_and_begins_as_base(example):
    task = example.texts(Part(0, 6), 0)
    start = task.initial(0)
    assert (start == task.initial(0)).all()
    assert not (start == task.initial(1)).all()
    tensors = task.layout.unflatten(start)
    assert all(not values.any() for name, values in tensors.items() if "lora_B" in name)
    assert any(values.any() for name, values in tensors.items() if "lora_A" in name)


def test_forward_equals_the_model_of_peft_and_masks_padding(example):
    module = example.adapted().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = torch.tensor([[3, 4, 5, 0, 0], [7, 8, 9, 10, 11]])
    whole, mask = module.whole, (x != 0).long()
    whole.load_state_dict({f"base_model.model.{k}": v for k, v in module.named_parameters()}, strict=False)
    expected = whole.eval()(input_ids=x, attention_mask=mask).logits
    assert torch.equal(module(x), expected)
    assert torch.allclose(module(x[:1]), module(x[:1, :3]), atol=1e-6)
    module(x)[0, 0].backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert all(parameter.grad is None for parameter in whole.parameters())


def test_nodes_with_another_base_have_another_layout(example):
    def another():
        base = example.base()
        torch.nn.init.zeros_(base.bert.pooler.dense.weight)
        return base

    adapted = with_adapters(another, example.adapted.config)
    names = [[name for name, _ in module().named_buffers()] for module in (example.adapted, adapted, example.adapted)]
    assert names[0] == names[2] != names[1]


@pytest.mark.parametrize("policy", ["dac", "dpfl"])
def test_policies_average_adapters_and_keep_heads(example, policy):
    scenario = {"task": example.texts, "policy": {"name": policy}, **FEW}
    (result,) = simulate(scenario, progress=False, models=True)
    task = example.texts(Part(0, 4), 0)
    heads = [np.concatenate([model[name].reshape(-1) for name in task.layout.private]) for model in result.models]
    assert all((heads[0] != head).any() for head in heads[1:])
    traffic = result.summary["traffic"]
    extras = 1024  # DAC sends its similarities
    assert 0 < traffic["bytes"] <= traffic["models"] * (2 * OVERHEAD + 4 * task.layout.shared.size + extras)
    assert any("shares values" in note for note in result.notes)


def test_configuration_that_trains_nothing_is_refused(example):
    from peft import LoraConfig

    config = LoraConfig(target_modules=["query"], inference_mode=True)
    with pytest.raises(ConfigurationError, match="leaves nothing to train"):
        with_adapters(example.base, config)()


def test_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingRequirementError, match=r"pip install 'p2pfl-node\[adapters\]'"):
        with_adapters(lambda: None, None)()
