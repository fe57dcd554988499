"""Matrices that are rows of a larger tensor, or made of several: their data are those of the tensors in the file."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from engine.compiler.graph import Graph
from engine.compiler.tensor import Tensor
from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from models.checkpoint import Checkpoint
from models.errors import ModelFileError
from models.quantize import quantize
from models.tensor_info import Quantization, TensorInfo
from models.weights import WeightLoader

COLUMNS = 32
RNG = np.random.default_rng(0)


class Held(Checkpoint):
    """Tensors in memory; those of `quantized` in that many bits."""

    def __init__(self, tensors: dict[str, Array], bits: int | None = None) -> None:
        self.path = Path("model")
        self._tensors = tensors
        self._bits = bits

    def names(self) -> list[str]:
        return list(self._tensors)

    def info(self, name: str) -> TensorInfo:
        value = self._tensors[name]
        if self._bits is None:
            return TensorInfo(value.shape, value.dtype)
        form = Quantization(self._bits, 16, np.dtype(np.float16), has_minimum=self._bits == 4)
        return TensorInfo(value.shape, np.dtype(np.float32), form)

    def tensor(self, name: str) -> Array | QuantizedTensor:
        value = self._tensors[name]
        if self._bits is None:
            return value
        return quantize(value.reshape(-1, value.shape[-1]), self._bits, 16)


def values(loader: WeightLoader, bits: int | None) -> list[Array]:
    """Of the loader's matrices, in the order in which they were asked for."""
    data = [load() for load in loader.loaders.values()]
    if bits is None:
        return data
    parts = 3 if bits == 4 else 2
    matrices = [data[at : at + parts] for at in range(0, len(data), parts)]
    return [QuantizedTensor(bits, 16, *matrix).dequantize() for matrix in matrices]


def whole(tensor: Array, bits: int | None) -> Array:
    return tensor if bits is None else quantize(tensor, bits, 16).dequantize()


def drawn(*shape: int) -> Array:
    return RNG.standard_normal((*shape, COLUMNS), np.float32)


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_a_tensor_that_holds_several_matrices(bits: int | None) -> None:
    fused = drawn(24)
    loader = WeightLoader(Held({"layers.3.attn.qkv.weight": fused}, bits))
    loader.split("attn.qkv", {"attn.q": 16, "attn.k": 3, "attn.v": 5})
    for part, rows in (("q", 16), ("k", 3), ("v", 5)):
        tensor = loader.matrix(Graph(), f"layers.3.attn.{part}", rows, COLUMNS)
        assert tensor.shape == (rows, COLUMNS)
    found = values(loader, bits)
    for part, want in zip(found, np.split(whole(fused, bits), [16, 19]), strict=True):
        np.testing.assert_array_equal(part, want)


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("apart", [True, False])
def test_experts_in_one_tensor_or_several(bits: int | None, apart: bool) -> None:
    stack = drawn(3, 8)
    one_by_one = {f"mlp.experts.{i}.up.weight": stack[i] for i in range(3)}
    held = Held(one_by_one if apart else {"mlp.experts.up.weight": stack}, bits)
    loader = WeightLoader(held)
    tensor = loader.experts(Graph(), "mlp.experts", "up", 3, 8, COLUMNS)
    assert tensor.shape == (3, 8, COLUMNS)
    (found,) = values(loader, bits)
    np.testing.assert_array_equal(found, whole(stack.reshape(24, COLUMNS), bits))


def test_a_matrix_that_is_used_twice_is_loaded_once() -> None:
    loader, graph = WeightLoader(Held({"table.weight": drawn(4)})), Graph()
    for _ in range(2):
        loader.matrix(graph, "table", 4, COLUMNS)
    assert len(loader.loaders) == 1


def of_two(first: Array, second: Array) -> Tensor:
    tensors = {"experts.0.up.weight": first, "experts.1.up.weight": second}
    return WeightLoader(Held(tensors)).experts(Graph(), "experts", "up", 2, 4, COLUMNS)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (drawn(5), r"'experts\.1\.up\.weight' has shape \(5, 32\), its config says \(4, 32\)"),
        (drawn(4).astype(ml_dtypes.bfloat16), r"'experts\.1\.up\.weight' are not of the same type"),
    ],
)
def test_experts_that_do_not_go_together_are_named(second: Array, problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        of_two(drawn(4), second)
