"""Running one kernel by itself, for tests: its C on given inputs, beside its NumPy meaning."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from engine.ops.base import Array, Call, Kernel, Source, Spec
from engine.ops.registry import all_ops
from engine.runtimes.native.driver import Driver, address_of, dims_array
from engine.runtimes.native.kernels import KernelLibrary
from engine.runtimes.native.linking import Slots, assemble
from engine.runtimes.toolchain import find_toolchain

DIRECTORY = Path(os.environ.get("EGGLM_TEST_CACHE", Path(gettempdir()) / "egglm-test-kernels"))


@cache
def driver(threads: int) -> Driver:
    return Driver(find_toolchain(), DIRECTORY, threads)


@cache
def library() -> KernelLibrary:
    return KernelLibrary(find_toolchain(), DIRECTORY)


def run(
    name: str,
    params: Sequence[object],
    inputs: Sequence[tuple[Spec, Array]],
    dims: Mapping[str, int] | None = None,
    *,
    variant: int = 0,
    threads: int = 2,
) -> Array:
    """The kernel's output bytes viewed as its spec's type and shape. An in-place input is copied first."""
    op = all_ops()[name]
    assert isinstance(op, Kernel)
    dims = dims or {}
    call = Call(tuple(params), tuple(spec for spec, _ in inputs))
    symbols = sorted(dims)
    made = op.source(call, lambda d: str(d) if isinstance(d, int) else f"({d.code({s: f'dims[{i}]' for i, s in enumerate(symbols)})})")
    source = Source(made.template, (*made.macros, *op.variants[variant]))
    library().add([source])
    spec = op.spec(call)
    arrays = [np.ascontiguousarray(a) for _, a in inputs]
    out = np.full(spec.bytes(dims), 0xA5, np.uint8)
    slots = Slots()
    operands = [slots.operand((address_of(a),)) for a in (out, *arrays)]
    program, keep = assemble([(1, [(library().address(source), True, operands)])], slots)
    driver(threads).run(program, dims_array(symbols, dims))
    del keep
    shape = [d if isinstance(d, int) else d.at(dims) for d in spec.shape]
    return out.view(spec.dtype.numpy).reshape(shape)


def meaning(
    name: str, params: Sequence[object], inputs: Sequence[tuple[Spec, Array]], dims: Mapping[str, int] | None = None
) -> Array:
    op = all_ops()[name]
    call = Call(tuple(params), tuple(spec for spec, _ in inputs))
    return op.meaning(call, dims or {}, *(a for _, a in inputs))
