"""The native runtime: programs in generated C, one foreign call a step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.extract import Instruction
from engine.compiler.graph import Graph, Node
from engine.compiler.handle import Handle
from engine.compiler.options import CompileOptions
from engine.compiler.program import Phase, Program
from engine.compiler.search import Profiler
from engine.compiler.shape import evaluate
from engine.compiler.tensor import Tensor
from engine.host import usable_cores
from engine.ops.base import Array
from engine.ops.registry import native_ops
from engine.runtimes.base import Roofline, Runtime, stored_shape
from engine.runtimes.native.driver import Driver, address_of, bytes_at, dims_array
from engine.runtimes.native.folding import Folds
from engine.runtimes.native.kernels import KernelLibrary, source_of
from engine.runtimes.native.linking import DriverProgram, Layout, lay_out, link
from engine.runtimes.native.profiling import NativeProfiler, default_example
from engine.runtimes.timings import OpTimings
from engine.runtimes.toolchain import find_toolchain

Example = Callable[[Mapping[str, int]], Mapping[Tensor, Array]]


class NativeRuntime(Runtime):
    """Runs on the CPU with `threads` threads (default: the physical cores it may use).

    `directory` keeps compiled libraries and timings. `example(dims)` gives inputs to time candidates with; by default
    integers are zeros and floats are random. Raises `ToolchainError` where there is no C compiler.
    """

    kernels = native_ops()
    roofline: ClassVar[Roofline] = Roofline(bandwidth=2e10, rate=1e11, launch=1e-6)

    def __init__(
        self,
        threads: int | None = None,
        directory: Path | None = None,
        example: Example | None = None,
    ) -> None:
        super().__init__()
        self.threads = threads or usable_cores()
        self.directory = directory or Path(mkdtemp(prefix="egglm-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.example = example
        self.toolchain = toolchain = find_toolchain()
        self.driver = Driver(toolchain, self.directory, self.threads)
        self.library = KernelLibrary(toolchain, self.directory)
        self.timings = OpTimings(self.directory / "timings")
        self.folds = Folds(self.driver, self.data)
        self.symbols: list[str] = []
        self._linked: dict[Program, _Linked] = {}
        self._stand_ins: set[Node] = set()
        self._arena = np.empty(0, np.uint8)
        self._capacity: dict[str, int] = {}
        self._buffers: dict[Node, Array] = {}
        self._last: tuple[_Linked, Mapping[str, int]] | None = None

    @property
    def device(self) -> str:
        """What timings and compiled code depend on: processor, instruction sets, compiler and threads."""
        return f"{self.toolchain.target} {self.threads} threads"

    @property
    def arena_bytes(self) -> int:
        return self._arena.nbytes

    def zeros(self, shape: tuple[int, ...], dtype: DType) -> Array:
        size = int(np.prod(shape)) * dtype.numpy.itemsize
        return self.driver.array(size).view(dtype.numpy).reshape(shape)

    # -- getting ready -------------------------------------------------------------------------------------------

    def profiler(self, graph: Graph, options: CompileOptions) -> Profiler:
        self._attach(graph)
        return NativeProfiler(self, options.max_memory_bytes)

    def _attach(self, graph: Graph) -> None:
        self._graph = graph
        self.symbols = sorted(graph.symbols)

    def _prepare(self) -> None:
        assert self._graph is not None
        self._attach(self._graph)
        for node in self._stand_ins:
            self._data.pop(node, None)
        if self._stand_ins:
            self.folds.clear()
            self._stand_ins.clear()
        self._buffers.clear()
        self._unlink()
        self.compile(self.programs.programs)

    def settle(self) -> None:
        """Link every program for the reserved dims, and drop folded weights that none of them uses."""
        self.folds.forget_uses()
        for program in self.programs.programs:
            self.link(program)
        for program in self.programs.programs:
            self.link(program)  # again where a larger arena moved what was linked before
        self.folds.drop_unused()

    def examples(self, dims: Mapping[str, int]) -> dict[Node, Array]:
        """Inputs to time candidates with; weights and states that have no data get stand-ins until `load`."""
        assert self._graph is not None
        given = {t.node: a for t, a in self.example(dims).items()} if self.example else {}
        rng = np.random.default_rng(0)
        found = {}
        for node in self._graph.inputs:
            if node in self._graph.persisted:
                if node not in self._data:
                    self._data[node] = default_example(node, dims, rng)
                    self._stand_ins.add(node)
            else:
                found[node] = given[node] if node in given else default_example(node, dims, rng)
        return found

    def compile(self, programs: "tuple[Program, ...]") -> None:
        """Compile the kernels that programs need."""
        self.library.add(
            source_of(i, self.c_symbols, program.fixed)
            for program in programs
            for phase in program.phases
            for i in phase.steps
        )

    @property
    def c_symbols(self) -> dict[str, str]:
        return {symbol: f"dims[{at}]" for at, symbol in enumerate(self.symbols)}

    def unlink(self, program: Program) -> None:
        """Forget a program's tables."""
        self._linked.pop(program, None)

    def _unlink(self) -> None:
        self._linked.clear()
        self._last = None

    def _changed(self, node: Node) -> None:
        if self._graph is not None and node in self._graph.persisted:
            if node not in self._graph.updates:
                self.folds.clear()
            self._unlink()

    # -- places --------------------------------------------------------------------------------------------------

    def reserve(self, dims: Mapping[str, int]) -> None:
        """Make room for steps up to these dims, so that no later step allocates."""
        wanted = {s: max(dims.get(s, 0), self._capacity.get(s, 0)) for s in self.symbols}
        if wanted != self._capacity:
            self._capacity = wanted
            self._buffers.clear()
            self._unlink()

    def _capacity_of(self, program: Program) -> dict[str, int]:
        return {**self._capacity, **{s: b.max for s, b in program.bucket.items()}}

    def lay_out(self, program: Program, dims: Mapping[str, int] | None = None) -> Layout:
        """Where a program's values will lie, for the largest dims that it will run at, or for larger ones."""
        assert self._graph is not None
        return lay_out(program, self._graph, {**self._capacity_of(program), **(dims or {})})

    def link(self, program: Program) -> "_Linked":
        """A program's tables, made when it first runs."""
        if program not in self._linked:
            layout = self.lay_out(program)
            if layout.size > self._arena.nbytes:
                self._arena = self.driver.array(layout.size)
                self._unlink()
            self._linked[program] = self._link(layout)
        return self._linked[program]

    def _link(self, layout: Layout) -> "_Linked":
        makers = {
            phase: {i.output: i for i in phase.instructions} for phase in layout.program.phases
        }

        def function(instruction: Instruction, program: Program) -> int:
            return self.library.address(source_of(instruction, self.c_symbols, program.fixed))

        def folded(phase: Phase, c: int, iteration: int) -> int:
            return address_of(self.folds.value(phase.space, makers[phase], c, iteration))

        program, keep, of_node = link(
            layout,
            address_of(self._arena),
            function,
            folded,
            lambda node: address_of(self.place(node)),
        )
        assert self._graph is not None
        copied = [
            (state, tensor)
            for state, tensor in self._graph.updates.items()
            if of_node(tensor.node) != address_of(self.place(state))
        ]
        return _Linked(program, keep, of_node, copied)

    def place(self, node: Node) -> Array:
        """The array that kernels read an input from: a persisted input's own, else a buffer for the largest dims."""
        assert self._graph is not None
        if node in self._graph.persisted:
            found = self.data(node)
            if node not in self._graph.updates and callable(self._data[node]):
                self._data[node] = found  # a kernel reads it as it is: it has to stay
            return found
        if node not in self._buffers:
            capacity = {**dict.fromkeys(self.symbols, 1), **self._capacity}
            for program in self._programs.programs if self._programs else ():
                for symbol, bucket in program.bucket.items():
                    capacity[symbol] = max(capacity[symbol], bucket.max)
            shape = [evaluate(d, capacity) for d in stored_shape(node.shape, node.dtype)]
            self._buffers[node] = np.zeros(shape, node.dtype.numpy)
        return self._buffers[node]

    # -- running -------------------------------------------------------------------------------------------------

    def _run(self, program: Program, dims: Mapping[str, int]) -> None:
        self.reserve({s: v for s, v in dims.items() if s not in program.bucket})
        linked = self.link(program)
        assert self._graph is not None
        for node in self._consumed:
            data = self.data(node)
            self.place(node).reshape(-1)[: data.size] = data.reshape(-1)
        self.driver.run(linked.program, dims_array(self.symbols, dims))
        self._last = (linked, dict(dims))
        for state, tensor in linked.copied:
            self.place(state)[...] = self._read(linked.of_node(tensor.node), tensor, dims)

    def _read(self, address: int, tensor: Handle, dims: Mapping[str, int]) -> Array:
        shape = [evaluate(d, dims) for d in stored_shape(tensor.shape, tensor.dtype)]
        size = int(np.prod(shape)) * tensor.dtype.numpy.itemsize
        return bytes_at(address, size).view(tensor.dtype.numpy).reshape(shape)

    def read_outputs(self, linked: "_Linked", dims: Mapping[str, int]) -> dict[str, Array]:
        """Copies of all outputs that a linked program has just made."""
        assert self._graph is not None
        return {
            str(n): self._read(linked.of_node(t.node), t, dims).copy()
            for n, t in enumerate(self._graph.outputs)
        }

    def view(self, tensor: Tensor) -> Array:
        """An output's memory, valid until the next execution."""
        if self._last is None:
            raise RuntimeError("nothing has been executed")
        linked, dims = self._last
        return self._read(linked.of_node(tensor.node), tensor, dims)

    def get(self, tensor: Tensor) -> Array:
        if tensor.node.op == "Input":
            return self.data(tensor.node).copy()
        return self.view(tensor).copy()


@dataclass(frozen=True)
class _Linked:
    """A program's tables, what must live as long, and where its results lie. `copied` are the states whose new value is
    made elsewhere and copied back after a step."""

    program: DriverProgram
    keep: list[object]
    of_node: Callable[[Node], int]
    copied: list[tuple[Node, Handle]]
