"""Compiled kernels: from C text to function addresses, in batches."""

import ctypes
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from engine.compiler.extract import Instruction
from engine.compiler.shape import Dim, substitute
from engine.ops.base import Kernel, Source
from engine.runtimes.native.prelude import PRELUDE
from engine.runtimes.toolchain import Toolchain


class KernelLibrary:
    """Functions by their C source. Each batch is compiled into libraries of its own; a source is compiled once."""

    def __init__(self, toolchain: Toolchain, directory: Path, processes: int = 2) -> None:
        self._toolchain, self._directory, self._processes = toolchain, directory, processes
        self._libraries: dict[Path, ctypes.CDLL] = {}
        self._homes: dict[Source, tuple[Path, int]] = {}

    def add(self, sources: Iterable[Source]) -> None:
        """Compile what no open library has."""
        missing = [s for s in dict.fromkeys(sources) if not self._find(s)]
        if not missing:
            return
        shares = [missing[i :: self._processes] for i in range(min(self._processes, len(missing)))]
        with ThreadPoolExecutor(len(shares)) as pool:
            for path in pool.map(self._compile, shares):
                self.open(path)

    def _compile(self, sources: list[Source]) -> Path:
        return self._toolchain.library(text(sources), self._directory)

    def open(self, path: Path) -> None:
        """Use the kernels of a compiled library."""
        self._libraries[path] = ctypes.CDLL(str(path))

    def address(self, source: Source) -> int:
        """Where a kernel's code is; it must have been added."""
        if not self._find(source):
            raise KeyError(kernel_name(source))
        return self._homes[source][1]

    def files(self, sources: Iterable[Source]) -> list[Path]:
        """The libraries that hold some kernels."""
        return sorted({self._homes[s][0] for s in sources if self._find(s)})

    def _find(self, source: Source) -> bool:
        if source in self._homes:
            return True
        name = kernel_name(source)
        for path, library in self._libraries.items():
            if hasattr(library, name):
                address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
                self._homes[source] = (path, address)
                return True
        return False


def text(sources: Iterable[Source]) -> str:
    """One translation unit with all the kernels."""
    return "\n".join([PRELUDE, *(s.text(kernel_name(s)) for s in sources)])


def kernel_name(source: Source) -> str:
    return "k_" + sha256(source.text("").encode()).hexdigest()[:20]


def source_of(
    instruction: Instruction, symbols: Mapping[str, str], fixed: Mapping[str, int]
) -> Source:
    """C of an instruction; `symbols` are the C expressions of symbols that are not fixed."""
    op = instruction.op
    assert isinstance(op, Kernel)

    def code(dim: int | Dim) -> str:
        value = substitute(dim, fixed)
        return f"({value.code(symbols)})" if isinstance(value, Dim) else str(value)

    made = op.source(instruction.call, code)
    return Source(made.template, (*made.macros, *op.variants[instruction.variant]))
