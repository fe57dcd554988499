"""Operations on the first part of a buffer compute what they compute on a tensor of that size.

Nothing in a view's strides tells a part from a whole: a rule that takes dense strides for all of a buffer shows here.
"""

from collections.abc import Callable

import numpy as np
import pytest

from engine import DType, Graph, NativeRuntime, ReferenceRuntime, Tensor
from engine.compiler import nn
from engine.ops.base import Array
from engine.runtimes.base import Runtime

T, K, N = 6, 16, 24
RUNTIMES: dict[str, type[Runtime]] = {"native": NativeRuntime, "reference": ReferenceRuntime}


class Operands:
    """Tensors of small numbers; with `parts` each is the first part of a buffer of twice its size."""

    def __init__(self, parts: bool) -> None:
        self.graph, self.parts = Graph(), parts
        self.data: list[tuple[Tensor, Array]] = []

    def __call__(self, *shape: int, below: int = 0) -> Tensor:
        """Floats of this shape, or indexes under `below`."""
        rng = np.random.default_rng(len(self.data))
        whole = rng.standard_normal((2, *shape)).astype(np.float32)
        if below:
            whole = rng.integers(0, below, (2, *shape)).astype(np.int32)
        held = whole if self.parts else whole[0]
        tensor = self.graph.tensor(held.shape, DType.I32 if below else DType.F32)
        self.data.append((tensor, held))
        return tensor.slice(0, 0, 1).squeeze(0) if self.parts else tensor


Build = Callable[[Operands], Tensor]
CASES: dict[str, Build] = {
    "linear": lambda b: nn.linear(b(T, K), b(N, K)),
    "linear with a bias": lambda b: nn.linear(b(T, K), b(N, K), b(N)),
    "linear and a residual": lambda b: b(T, N) + nn.linear(b(T, K), b(N, K)),
    "matmul": lambda b: b(T, K).matmul(b(K, N)),
    "rms_norm": lambda b: nn.rms_norm(b(T, K), b(K), 1e-5),
    "rms_norm of a sum": lambda b: nn.rms_norm(b(T, K) + b(T, K), b(K), 1e-5),
    "rms_norm and a residual": lambda b: b(T, K) + nn.rms_norm(b(T, K), b(K), 1e-5),
    "layer_norm": lambda b: nn.layer_norm(b(T, K), b(K), b(K), 1e-5),
    "softmax": lambda b: b(2, T, K).softmax(-1),
    "swiglu": lambda b: nn.swiglu(b(T, K), b(T, K)),
    "geglu": lambda b: nn.geglu(b(T, K), b(T, K)),
    "embedding": lambda b: nn.embedding(b(N, K), b(T, below=N)),
    "scatter_rows": lambda b: nn.scatter_rows(b(N, K), b(T, below=N), b(T, K)),
    "sum": lambda b: b(T, K).sum(-1),
    "max": lambda b: b(T, K).max(0),
    "cumsum": lambda b: b(T, K).cumsum(-1),
    "argsort": lambda b: b(T, K).argsort(-1),
    "halves": lambda b: nn.rotary(b(T, 2, K), *nn.rotary_tables(b(T, below=99), b(K // 2))),
    "neighbours": lambda b: nn.rotary(
        b(T, 2, K), *nn.rotary_tables(b(T, below=99), b(K // 2)), interleaved=True
    ),
    "attention": lambda b: nn.attention(b(2, T, K), b(2, N, K), b(2, N, K), None, 0.25),
    "experts": lambda b: nn.experts_glu(
        b(T, K), *nn.route(b(T, 4), 2), b(4, 8, K), b(4, 8, K), b(4, K, 8)
    ),
}


def computed(build: Build, parts: bool, runtime: Runtime) -> Array:
    b = Operands(parts)
    result = build(b).output()
    b.graph.compile(runtime)
    for tensor, data in b.data:
        runtime.set_data(tensor, data)
    runtime.execute()
    return runtime.get(result)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", CASES)
def test_a_first_part_is_a_tensor_of_its_own(name: str, runtime: str) -> None:
    got = computed(CASES[name], True, RUNTIMES[runtime]())
    want = computed(CASES[name], False, ReferenceRuntime())
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
