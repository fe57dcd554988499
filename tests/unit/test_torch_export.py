"""What `torch.export` gives, read on the spot; `test_exported.py` replays stored graphs where there is no torch."""

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.export import Dim, export  # noqa: E402

from engine import CompileOptions  # noqa: E402
from engine.compiler.backends import UnsupportedError, compile_foreign  # noqa: E402
from engine.compiler.backends.torch_export import from_torch, to_numpy  # noqa: E402

ONCE = CompileOptions(search_time_limit=0)


class Encoder(nn.Module):
    """Attention and a feed-forward, each after a norm, over a batch of sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])
        self.feed = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen += x.shape[1]
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.feed(self.norms[1](x)), self.seen * 1


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_dynamic_sizes_and_a_state(backend: str) -> None:
    torch.manual_seed(0)
    model = Encoder().eval()
    sizes = {0: Dim("batch", max=8), 1: Dim("length", max=32)}
    run = compile_foreign(
        export(model, (torch.randn(2, 5, 16),), dynamic_shapes=(sizes,)),
        backend=backend,
        options=ONCE,
    )
    total = 0
    for batch, length in ((2, 5), (1, 9), (3, 2)):
        x = torch.randn(batch, length, 16)
        y, seen = run(x)
        with torch.no_grad():
            want, _ = model(x)
        total += length
        np.testing.assert_allclose(y, want.numpy(), atol=1e-5)
        assert seen == total == model.seen


def test_unknown_operations() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.lgamma(x) + torch.digamma(x.relu())

    with pytest.raises(UnsupportedError, match=r"aten\.digamma\.default, aten\.lgamma\.default$"):
        compile_foreign(export(Odd(), (torch.eye(3),)), backend="reference")


def test_types_that_the_compiler_lacks() -> None:
    with pytest.raises(UnsupportedError, match=r"gives torch\.float64"):
        from_torch(export(nn.Identity(), (torch.zeros(2, dtype=torch.float64),)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_that_numpy_lacks(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -1.5, 0.25, 14.0]).to(dtype)
    np.testing.assert_array_equal(to_numpy(values).astype(np.float32), values.float().numpy())


def test_the_example_of_the_documentation() -> None:
    page = Path(__file__).parents[2] / "docs" / "foreign-graphs.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(example, str(page), "exec"), {})
