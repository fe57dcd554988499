"""Running one kernel by itself, for tests: its C on given inputs, beside its NumPy meaning.

Every buffer ends where a page begins that may not be touched, so that a kernel that reads or writes past it crashes,
and outputs are filled with rubbish first, so that a kernel that leaves something unwritten is seen.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from engine.compiler.shape import Dim
from engine.ops.base import Array, Call, Kernel, Source, Spec
from engine.ops.expression import Expression
from engine.ops.registry import all_ops
from engine.ops.views import sizes
from engine.runtimes.native.driver import Driver, address_of, dims_array
from engine.runtimes.native.kernels import KernelLibrary
from engine.runtimes.native.linking import Slots, assemble
from engine.runtimes.toolchain import find_toolchain

DIRECTORY = Path(os.environ.get("EGGLM_TEST_CACHE", Path(gettempdir()) / "egglm-test-kernels"))
_LIBC = ctypes.CDLL(None, use_errno=True)


@cache
def driver(threads: int) -> Driver:
    return Driver(find_toolchain(), DIRECTORY, threads)


@cache
def library() -> KernelLibrary:
    return KernelLibrary(find_toolchain(), DIRECTORY)


@dataclass(frozen=True)
class Case:
    """A kernel with its parameters and the specs of its inputs. Symbols in their shapes are read at run time."""

    name: str
    params: tuple[object, ...]
    inputs: tuple[Spec, ...]
    expression: Expression | None = None
    variant: int = 0

    @property
    def op(self) -> Kernel:
        op = all_ops()[self.name]
        assert isinstance(op, Kernel)
        return op

    @property
    def call(self) -> Call:
        return Call(self.params, self.inputs, self.expression)

    @property
    def spec(self) -> Spec:
        """Of the output."""
        return self.op.spec(self.call)

    def source(self, symbols: Sequence[str]) -> Source:
        names = {s: f"dims[{i}]" for i, s in enumerate(symbols)}

        def code(dim: int | Dim) -> str:
            return str(dim) if isinstance(dim, int) else f"({dim.code(names)})"

        made = self.op.source(self.call, code)
        return Source(made.template, (*made.macros, *self.op.variants[self.variant]))

    def run(
        self, inputs: Sequence[Array], dims: Mapping[str, int] | None = None, threads: int = 2
    ) -> Array:
        """The output in its spec's type and shape. An input that the kernel writes to is left as it was."""
        dims = dims or {}
        symbols = sorted(dims)
        source = self.source(symbols)
        library().add([source])
        held = [
            _fenced(np.ascontiguousarray(x), spec.bytes(dims))
            for x, spec in zip(inputs, self.inputs, strict=True)
        ]
        if self.op.in_place is None:
            size = self.spec.bytes(dims)
            out = _fenced(np.full(size, 0xA5, np.uint8), size)
        else:
            out = held[self.op.in_place]
        slots = Slots()
        operands = [slots.operand((address_of(a),)) for a in (out, *held)]
        program, keep = assemble([(1, [(library().address(source), True, operands)])], slots)
        driver(threads).run(program, dims_array(symbols, dims))
        del keep
        return out.view(self.spec.dtype.numpy).reshape(sizes(self.spec.shape, dims)).copy()

    def meaning(self, inputs: Sequence[Array], dims: Mapping[str, int] | None = None) -> Array:
        """What NumPy makes of the same inputs."""
        dims = dims or {}
        with np.errstate(all="ignore"):
            found = np.asarray(self.op.meaning(self.call, dims, *inputs))
        assert found.dtype == self.spec.dtype.numpy
        return found.reshape(sizes(self.spec.shape, dims))


def prepare(cases: Iterable[Case], *symbols: str) -> None:
    """Compile many cases together, which is much faster than one by one. They will run with values of `symbols`."""
    library().add(case.source(sorted(symbols)) for case in cases)


def run(
    name: str,
    params: Sequence[object],
    inputs: Sequence[tuple[Spec, Array]],
    dims: Mapping[str, int] | None = None,
    *,
    variant: int = 0,
    threads: int = 2,
) -> Array:
    """The output of a kernel that is given with its inputs; numbers may stand for their text in `params`."""
    texts = tuple(str(p) if isinstance(p, int) else p for p in params)
    case = Case(name, texts, tuple(spec for spec, _ in inputs), variant=variant)
    return case.run([array for _, array in inputs], dims, threads)


def _fenced(array: Array, size: int) -> Array:
    """A copy, as bytes, whose last byte is the last before memory that may not be touched."""
    assert array.nbytes == size
    page = mmap.PAGESIZE
    room = -(-max(size, 1) // page) * page
    memory = mmap.mmap(-1, room + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert _LIBC.mprotect(ctypes.c_void_p(start + room), page, 0) == 0
    held = np.frombuffer(memory, np.uint8, size, room - size)
    held[:] = array.reshape(-1).view(np.uint8)
    return held
