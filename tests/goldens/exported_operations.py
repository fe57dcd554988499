"""Operations of ATen one by one, for `make_exported.py`: each function's results are outputs of one graph."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

aten = torch.ops.aten
Function = Callable[..., Any]


class Operations(nn.Module):
    def __init__(self, functions: Sequence[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = []
        for function in self.functions:
            result = function(*inputs)
            outputs += result if isinstance(result, tuple | list) else [result]
        return tuple(outputs)


class Group(NamedTuple):
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    functions: list[Function]


def _numbers() -> tuple[torch.Tensor, ...]:
    """x and y [3, 5], a row of 5, whole numbers and booleans [3, 5], half precision [3, 5]."""
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    x[0, 0], y[1, 1] = 0.0, 0.0
    whole = torch.randint(-9, 10, (3, 5))
    return x, y, torch.randn(5), whole, whole % 2 == 0, torch.randn(3, 5).to(torch.bfloat16)


ELEMENTWISE = Group(
    _numbers,
    [
        lambda x, y, r, i, b, h: [x + y, x + r, x + 2, torch.add(x, y, alpha=3), i + 1.5, b + b],
        lambda x, y, r, i, b, h: [x - y, torch.sub(x, r, alpha=2), 3 - x, i - i * 3, h + h],
        lambda x, y, r, i, b, h: [x * y, x * b, x * i, b * b, h * r, aten.mul.Scalar(x, 1.5)],
        lambda x, y, r, i, b, h: [x / (y + 9), i / 4, torch.div(x, y + 9, rounding_mode="floor")],
        lambda x, y, r, i, b, h: [torch.div(x * 7, 2, rounding_mode="trunc"), aten.rsub(x, y)],
        lambda x, y, r, i, b, h: [torch.fmod(x, 0.3), torch.fmod(x, r), torch.fmod(i, 4)],
        lambda x, y, r, i, b, h: [torch.remainder(x, r), torch.remainder(i, 4), i % -4],
        lambda x, y, r, i, b, h: [x**3, x**2, i**2, x.abs() ** 0.5, (x.abs() + 1) ** -0.5],
        lambda x, y, r, i, b, h: [(x.abs() + 1) ** 1.7, (y.abs() + 1) ** -2],
        lambda x, y, r, i, b, h: [x == y, i == 2, x != r, i != 2, x < y, i < 0.5, h < 0.1, x <= r],
        lambda x, y, r, i, b, h: [i <= 2, x > y, x > 0, x >= y, i >= 2, i > x, b == 1, h >= x],
        lambda x, y, r, i, b, h: [torch.logical_and(b, x > 0), torch.logical_or(i, b)],
        lambda x, y, r, i, b, h: [torch.logical_xor(b, x), torch.logical_not(x)],
        lambda x, y, r, i, b, h: [b & (x > 0), b | (x > 0), b ^ (x > 0), ~b, ~i],
        lambda x, y, r, i, b, h: [torch.minimum(x, r), torch.maximum(x, y), torch.maximum(i, -i)],
        lambda x, y, r, i, b, h: [
            torch.where(b, x, y),
            torch.where(b, x, 0.5),
            x.masked_fill(b, 2),
        ],
        lambda x, y, r, i, b, h: [x.clamp(-1, 1), x.clamp(min=0), i.clamp(max=3), x.clamp(r, y)],
        lambda x, y, r, i, b, h: [F.relu6(x * 9), F.hardtanh(x), x.abs(), -x, -i, x.sign()],
        lambda x, y, r, i, b, h: [x.exp(), x.exp2(), x.abs().log(), (x.abs() + 1).log2()],
        lambda x, y, r, i, b, h: [x.sin(), x.cos(), x.abs().sqrt(), (x.abs() + 1).rsqrt()],
        lambda x, y, r, i, b, h: [(x + 9).reciprocal(), x.erf(), i.abs().sqrt(), h.exp()],
        lambda x, y, r, i, b, h: [(x * 3).floor(), (x * 3).ceil(), (x * 3).trunc()],
        lambda x, y, r, i, b, h: [torch.isnan(x.log()), torch.isinf(x.abs().log())],
        lambda x, y, r, i, b, h: [F.relu(x), x.sigmoid(), F.silu(x), x.tanh(), h.tanh()],
        lambda x, y, r, i, b, h: [F.gelu(x), F.gelu(x, approximate="tanh"), F.gelu(h)],
        lambda x, y, r, i, b, h: [F.leaky_relu(x), F.elu(x), F.elu(x, 0.5), F.softplus(x)],
        lambda x, y, r, i, b, h: [x.to(torch.int32), i.float(), x.to(torch.bfloat16), b.long()],
        lambda x, y, r, i, b, h: [torch.full((2, 3), 7), torch.zeros_like(x), torch.ones(2)],
        lambda x, y, r, i, b, h: [torch.full_like(i, -math.pi), torch.scalar_tensor(2.5) * x],
        lambda x, y, r, i, b, h: [torch.arange(5), torch.arange(2, 9, 3), torch.arange(0.5, 2)],
        lambda x, y, r, i, b, h: [aten.sub.Scalar(x, 2), aten.div.Scalar(x, 3)],
        lambda x, y, r, i, b, h: [aten.div.Scalar_mode(x, 0.3, rounding_mode="floor")],
        lambda x, y, r, i, b, h: [
            aten.bitwise_and.Scalar(b, True),
            aten.bitwise_xor.Scalar(b, True),
        ],
        lambda x, y, r, i, b, h: [aten.bitwise_or.Scalar(b, False), aten.rsub.Scalar(x, 2)],
        lambda x, y, r, i, b, h: [aten.add.Scalar(x, 2)],
    ],
)


def _places() -> tuple[torch.Tensor, ...]:
    """x [2, 3, 4], rows [2, 4], places [4] within 3, places [2, 2, 4] within 2, a table [7, 4]."""
    places, many = torch.tensor([2, 0, 0, 1]), torch.randint(0, 2, (2, 2, 4))
    return torch.randn(2, 3, 4), torch.randn(2, 4), places, many, torch.randn(7, 4)


def _put(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[index] = value
    return x


MOVEMENT = Group(
    _places,
    [
        lambda x, r, p, m, t: [x.view(6, 4), x.reshape(2, -1), x.permute(2, 0, 1).reshape(4, 6)],
        lambda x, r, p, m, t: [x.transpose(0, 1), r.t(), r.unsqueeze(1).expand(2, 3, 4)],
        lambda x, r, p, m, t: [
            x[:, :1].squeeze(1),
            x.unsqueeze(-1),
            x.clone(),
            x.expand(5, 2, 3, 4),
        ],
        lambda x, r, p, m, t: [x[:, 1:], x[..., ::2], x[:, -2:, 1:4:2], x[1], x[:, -1], x[0, 1:]],
        lambda x, r, p, m, t: list(x.split([1, 2], 1)) + list(x.chunk(2, -1)) + list(x.unbind(1)),
        lambda x, r, p, m, t: [torch.cat([x, r[:, None], x], 1), torch.stack([r, r * 2], -1)],
        lambda x, r, p, m, t: [torch.cat([x, x.long()], -1), torch.cat([torch.zeros(0), r])],
        lambda x, r, p, m, t: [x.flip(0, -1), x.repeat(2, 1, 2), r.repeat(3, 1, 1), x.roll(1, 2)],
        lambda x, r, p, m, t: [
            F.pad(x, (1, 2)),
            F.pad(x, (0, 1, 2, 0), value=-4),
            F.pad(x, (-1, 1)),
        ],
        lambda x, r, p, m, t: [F.embedding(p, t), F.embedding(m, t), x.index_select(1, p)],
        lambda x, r, p, m, t: [x.gather(1, m), x.gather(2, m), r.gather(0, m[0])],
        lambda x, r, p, m, t: [x[:, p], x[m[0, :, 0], p[:2]], x[m[0, :, 0], :, p[:2]], x[:, p - 3]],
        lambda x, r, p, m, t: [x[m[:, :1, 0], p[None, :2]], t[m], x[..., p]],
        lambda x, r, p, m, t: [_put(x, (slice(None), p[:2]), 5.0), _put(t, p[1:2], r[0])],
        lambda x, r, p, m, t: [_put(t, (p[::3], p[::3]), r[0, :2]), _put(x, (0, p[:2]), r)],
        lambda x, r, p, m, t: [x.scatter(1, p[:2].view(1, 2, 1), 9.0), t.scatter(0, m[0], r)],
        lambda x, r, p, m, t: [_put(t, slice(1, 6, 2), 0.0), _put(x, (slice(None), 1), r)],
        lambda x, r, p, m, t: [torch.slice_scatter(t, r, 0, -2), torch.select_scatter(x, r, 1, -1)],
        lambda x, r, p, m, t: [x.triu(1), r.tril(), torch.where(p[:, None] == p, 1, 0)],
        lambda x, r, p, m, t: [aten.alias(x) * 2],
    ],
)


def _ranks() -> tuple[torch.Tensor, ...]:
    """x [2, 3, 7] with ties, whole numbers [4, 6], booleans [3, 5], half precision [3, 5]."""
    x = torch.randint(-3, 4, (2, 3, 7)).float()
    x[0] += torch.randn(3, 7)
    return x, torch.randint(-9, 10, (4, 6)), torch.rand(3, 5) < 0.3, torch.randn(3, 5).bfloat16()


REDUCTIONS = Group(
    _ranks,
    [
        lambda x, i, b, h: [x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), i.sum(), b.sum(0)],
        lambda x, i, b, h: [x.mean(), x.mean((1, 2)), h.mean(-1, keepdim=True), h.sum(0), h.mean()],
        lambda x, i, b, h: [x.var(), x.var((0, 1)), x.std(2, correction=0)],
        lambda x, i, b, h: [x.amax(1), i.amax((0, 1)), x.amin(-1, keepdim=True), x.max(), i.min()],
        lambda x, i, b, h: [*x.max(1), *i.max(0, keepdim=True), x.min(2)[0], i.min(1)[0]],
        lambda x, i, b, h: [b.any(), b.any(1), i.any(0, keepdim=True), b.all(), b.all(0), i.all(1)],
        lambda x, i, b, h: [x.argmax(), x[0].argmax(1), i[:, :3].argmin(0, keepdim=True)],
        lambda x, i, b, h: [x[0].topk(3)[0], *x[0].topk(2, dim=0, largest=False)],
        lambda x, i, b, h: [
            x[0].sort(-1)[1],
            i.sort(0, descending=True)[0],
            x.argsort(stable=True),
        ],
        lambda x, i, b, h: [x.cumsum(1), i.cumsum(-1), b.cumsum(0), torch.any(x, dim=(0, 1))],
        lambda x, i, b, h: [x.softmax(-1), x.softmax(0), h.softmax(1), h.float().softmax(1)],
        lambda x, i, b, h: [x.log_softmax(1), h.log_softmax(-1), torch.logsumexp(x, 1)],
    ],
)


def _images() -> tuple[torch.Tensor, ...]:
    """An image [2, 4, 8, 6], a signal [2, 4, 11], filters [6, 4, 3, 2], of groups [6, 2, 3], a vector [6]."""
    sizes = ((2, 4, 8, 6), (2, 4, 11), (6, 4, 3, 2), (6, 2, 3), (6,))
    return tuple(torch.randn(*size) for size in sizes)


LAYERS = Group(
    _images,
    [
        lambda x, s, f, g, v: [x[0, 0] @ x[0, 1].mT, x[0] @ x[1].mT, F.linear(x, g[:, 0, :1] * v)],
        lambda x, s, f, g, v: [torch.addmm(v, x[0, 0], v[:, None] * v, beta=2, alpha=0.5)],
        lambda x, s, f, g, v: [F.conv2d(x, f, v), F.conv2d(x, f, None, (2, 1), (1, 0), (1, 2))],
        lambda x, s, f, g, v: [F.conv1d(s, g, v, groups=2), F.conv1d(s, g, None, 3, 2, 2, 2)],
        lambda x, s, f, g, v: [F.max_pool2d(x, 2), F.max_pool2d(x, (3, 2), (1, 2), (1, 0))],
        lambda x, s, f, g, v: [F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x[0], (4, 1))],
        lambda x, s, f, g, v: [F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (4, 3))],
        lambda x, s, f, g, v: [F.layer_norm(x, (6,), v, v), F.layer_norm(x, (8, 6)), F.layer_norm(v, (6,))],
        lambda x, s, f, g, v: [F.group_norm(x, 2, v[:4], v[:4]), F.group_norm(s, 4)],
        lambda x, s, f, g, v: [F.batch_norm(x, v[:4], v[:4].square(), v[1:5], v[2:])],
        lambda x, s, f, g, v: [F.batch_norm(s, v[:4], v[:4].square()), F.rms_norm(x, (6,), v)],
        lambda x, s, f, g, v: [F.interpolate(x, scale_factor=2.0), F.interpolate(x, (16, 6))],
        lambda x, s, f, g, v: [F.linear(s[:1, 0], s[0]), F.layer_norm(x[0, 0], (6,)), F.linear(x[:1, 0, 0], x[0, 1])],
        lambda x, s, f, g, v: [F.scaled_dot_product_attention(x, x.flip(2), x, is_causal=True)],
    ],
)  # fmt: skip

GROUPS = {
    "elementwise": ELEMENTWISE,
    "movement": MOVEMENT,
    "reductions": REDUCTIONS,
    "layers": LAYERS,
}
