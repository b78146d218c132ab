"""Fine-tune adapters of a frozen transformer: nodes share the adapters, and each keeps its own head.

A tiny model with random weights stands for a pretrained one, so that nothing is downloaded. Two groups of nodes label the
same texts in opposite ways.
"""

import numpy as np
from peft import LoraConfig
from transformers import BertConfig, BertForSequenceClassification

import p2pfl


def base():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=30, max_position_embeddings=16, **sizes))


adapted = p2pfl.with_adapters(base, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "key", "value", "dense"]))


def texts(part, seed):
    rng = np.random.default_rng([seed, part.index])
    x = rng.integers(1, 30, (240, 8))
    y = ((x < 15).sum(1) > 4) ^ (part.index % 2)
    train, validation, test = ((x[k], y[k]) for k in (slice(60), slice(60, 120), slice(120, 240)))
    how = {"optimizer": p2pfl.Adam(lr=0.01), "public_info": {"group": part.index % 2}, "private": ["classifier"]}
    return p2pfl.classification(adapted, train, validation, test, **how)


def main():
    for policy in ({"name": "local"}, {"name": "dac", "neighbours": 2}, {"name": "dpfl"}):
        scenario = {"task": texts, "policy": policy, "nodes": 6, "rounds": 10}
        print(policy["name"], p2pfl.simulate(scenario, progress=False)[0].summary["test"]["mean"])


if __name__ == "__main__":
    main()
