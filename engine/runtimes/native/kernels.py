"""Compiled kernels: from C text to function addresses, in batches."""

import ctypes
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from engine.compiler.extract import Instruction
from engine.compiler.shape import Dim, substitute
from engine.ops.base import Kernel, Source
from engine.runtimes.toolchain import Toolchain

_PRELUDE = Path(__file__).parent / "prelude.h"


class KernelLibrary:
    """Functions by their C source. Each batch is compiled into libraries of its own; a source is compiled once."""

    def __init__(self, toolchain: Toolchain, directory: Path, processes: int = 2) -> None:
        self._toolchain, self._directory, self._processes = toolchain, directory, processes
        self._addresses: dict[Source, int] = {}
        self._libraries: list[ctypes.CDLL] = []

    def add(self, sources: Iterable[Source]) -> None:
        """Compile what is not yet compiled."""
        missing = [s for s in dict.fromkeys(sources) if s not in self._addresses]
        if not missing:
            return
        shares = [missing[i :: self._processes] for i in range(min(self._processes, len(missing)))]
        with ThreadPoolExecutor(len(shares)) as pool:
            for share, path in zip(shares, pool.map(self._compile, shares), strict=True):
                self.open(path, share)

    def _compile(self, sources: list[Source]) -> Path:
        return self._toolchain.library(text(sources), self._directory)

    def open(self, path: Path, sources: Iterable[Source]) -> None:
        """Take functions from a library that was compiled from `text(sources)`."""
        library = ctypes.CDLL(str(path))
        self._libraries.append(library)
        for source in sources:
            function = getattr(library, kernel_name(source))
            self._addresses[source] = ctypes.cast(function, ctypes.c_void_p).value or 0

    def address(self, source: Source) -> int:
        return self._addresses[source]


def text(sources: Iterable[Source]) -> str:
    """One translation unit with all the kernels."""
    return "\n".join([_PRELUDE.read_text(), *(s.text(kernel_name(s)) for s in sources)])


def kernel_name(source: Source) -> str:
    return "k_" + sha256(source.text("").encode()).hexdigest()[:20]


def source_of(instruction: Instruction, symbols: Mapping[str, str], fixed: Mapping[str, int]) -> Source:
    """C of an instruction; `symbols` are the C expressions of symbols that are not fixed."""
    op = instruction.op
    assert isinstance(op, Kernel)

    def code(dim: int | Dim) -> str:
        value = substitute(dim, fixed)
        return f"({value.code(symbols)})" if isinstance(value, Dim) else str(value)

    made = op.source(instruction.call, code)
    return Source(made.template, (*made.macros, *op.variants[instruction.variant]))
