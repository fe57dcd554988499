"""Makes the folder `exported`: graphs that `torch.export` gives, their weights, and what PyTorch computes from them.

Run with a Python that has EggLM, torch 2.13.0 and transformers 5.24.0:

    python tests/goldens/make_exported.py [NAME ...]

NAME.json is the graph in EggLM's neutral form; NAME.npz has weights under "weight:KEY", and each call's inputs and
outputs under "call:N:input:I" and "call:N:output:I". A call after the first has other sizes, or another state.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from exported_operations import GROUPS, Operations
from torch import nn
from torch.export import Dim
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)

from engine.compiler.backends.torch_export import from_torch, to_numpy

FOLDER = Path(__file__).parent / "exported"
TEXT: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


class Of(nn.Module):
    """One tensor of what a model of transformers returns."""

    def __init__(self, model: nn.Module, result: str, **options: Any) -> None:
        super().__init__()
        self.model, self.result, self.options = model, result, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(x, **self.options), self.result)


class Counter(nn.Module):
    """A state that each call changes, and a mean of what has been seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        self.calls += 1
        return self.total / self.calls


class Cache(nn.Module):
    """Rows that are written at places and read back, as a key cache is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 4))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        self.rows[places] = x
        return self.rows @ x.T


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    calls: list[tuple[torch.Tensor, ...]]
    dynamic: Any = None


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, TEXT["vocab_size"], shape)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.GELU(),
        nn.LayerNorm(16),
        nn.Linear(16, 16),
        nn.SiLU(),
        nn.Linear(16, 4, bias=False),
        nn.Softmax(-1),
    )


def llama() -> nn.Module:
    config = LlamaConfig(**TEXT, num_key_value_heads=2, tie_word_embeddings=True)
    return Of(LlamaForCausalLM(config), "logits", use_cache=False)


def bert() -> nn.Module:
    return Of(BertModel(BertConfig(**TEXT)), "last_hidden_state")


def resnet() -> nn.Module:
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 1], layer_type="basic", num_labels=5
    )
    model = ResNetForImageClassification(config)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.5, 2.0)
    return Of(model, "logits")


CASES: dict[str, Callable[..., Case]] = {
    "mlp": lambda: Case(
        mlp, [(torch.randn(n, 6),) for n in (3, 1, 20)], ({0: Dim("batch", max=64)},)
    ),
    "mlp-bf16": lambda: Case(
        lambda: mlp().to(torch.bfloat16), [(torch.randn(3, 6).to(torch.bfloat16),)]
    ),
    "llama": lambda: Case(llama, [(ids(2, 11),)]),
    "bert": lambda: Case(bert, [(ids(2, 9),)]),
    "resnet": lambda: Case(resnet, [(torch.randn(2, 3, 32, 32),)]),
    "counter": lambda: Case(Counter, [(torch.randn(3, 4),) for _ in range(3)]),
    "cache": lambda: Case(
        Cache, [(torch.randn(2, 4), torch.tensor(places)) for places in ([1, 6], [-1, 1])]
    ),
}


for _group, _operations in GROUPS.items():
    CASES[f"operations-{_group}"] = lambda group=_operations: Case(
        lambda: Operations(group.functions), [group.inputs()]
    )


def make(name: str, case: Case) -> None:
    model = case.model().eval()
    program = torch.export.export(model, case.calls[0], dynamic_shapes=case.dynamic)
    graph, weights = from_torch(program)
    arrays = {f"weight:{key}": storable(value) for key, value in weights.items()}
    with torch.no_grad():
        for n, inputs in enumerate(case.calls):
            outputs = model(*inputs)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            for kind, tensors in (("input", inputs), ("output", outputs)):
                for i, tensor in enumerate(tensors):
                    arrays[f"call:{n}:{kind}:{i}"] = storable(to_numpy(tensor))
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(graph.to_json())
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


def storable(array: np.ndarray) -> np.ndarray:
    """NumPy's files have no bfloat16; f32 holds its values."""
    return array.astype(np.float32) if array.dtype.kind == "V" or array.itemsize == 2 else array


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        torch.manual_seed(0)
        make(name, CASES[name]())


if __name__ == "__main__":
    main()
