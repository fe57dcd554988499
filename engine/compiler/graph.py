"""The graph that model code builds: nodes of primitive operations over viewed inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, Shape, ShapeError, View, symbol

if TYPE_CHECKING:
    import random

    from engine.compiler.handle import Handle
    from engine.compiler.options import CompileOptions
    from engine.compiler.space import SearchSpace
    from engine.compiler.tensor import Tensor
    from engine.runtimes.base import Runtime


class DimError(ValueError):
    """A symbol was given a value outside the range that the graph states for it."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operation. Its result is contiguous in `shape`; each input is read through a view.

    `attrs` are the operation's constants (a value, a name, a size). A composite operation (paged attention) also has
    an `expansion`: the node that computes the same from primitives.
    """

    id: int
    op: str
    attrs: tuple[Any, ...]
    inputs: tuple["Operand", ...]
    shape: Shape
    dtype: DType
    expansion: "Operand | None" = None

    def __repr__(self) -> str:
        # Without what it reads: the text of a graph whose values are used twice would double with every node.
        return f"<node {self.id}: {self.op} {self.dtype.value}{list(self.shape)}>"


@dataclass(frozen=True)
class Operand:
    node: Node
    view: View


@dataclass(eq=False)
class Graph:
    """A program under construction.

    Quick start::

        g = Graph()
        a, b = g.tensor((3, 1)), g.tensor((1, 4))
        c = a.matmul(b).output()
        rt = g.compile(NativeRuntime(), CompileOptions())
        rt.set_data(a, [[1], [2], [3]]); rt.set_data(b, [[1, 2, 3, 4]])
        rt.execute()
        rt.get(c)
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    persisted: set[Node] = field(default_factory=set)
    outputs: list["Handle"] = field(default_factory=list)
    updates: dict[Node, "Handle"] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, range] = field(default_factory=dict)
    search_space: "SearchSpace | None" = None
    _names: set[str] = field(default_factory=set)

    def tensor(self, shape: Sequence[Any], dtype: DType = DType.F32) -> "Tensor":
        """An unnamed input."""
        return self.named_tensor("", shape, dtype)

    def named_tensor(self, name: str, shape: Sequence[Any], dtype: DType = DType.F32) -> "Tensor":
        """An input; `name` is the key under which `load_safetensors` finds its data. Dims are ints, symbols' names, or
        polynomials over symbols."""
        from engine.compiler.tensor import Tensor

        dims = tuple(symbol(d) if isinstance(d, str) else d for d in shape)
        if name in self._names:
            raise ShapeError(f"the graph already has an input named {name!r}")
        node = self.add("Input", (name or f"input{len(self.inputs)}",), (), dims, dtype)
        if name:
            self._names.add(name)
        self.inputs.append(node)
        return Tensor(self, node, View.contiguous(dims))

    def constant(self, value: "float | Dim", dtype: DType = DType.F32) -> "Tensor":
        """A scalar of shape (); an integer one can be the value of a dimension."""
        from engine.compiler.tensor import Tensor

        if isinstance(value, Dim):
            number: float | Dim = value
        else:
            number = float(value) if dtype.is_float else int(value)
        return Tensor(self, self.add("Constant", (number,), (), (), dtype), View(()))

    def iota(self, size: Any) -> "Tensor":
        """0, 1, ... size-1 as I32."""
        from engine.compiler.tensor import Tensor

        dim = symbol(size) if isinstance(size, str) else size
        return Tensor(self, self.add("Iota", (), (), (dim,), DType.I32), View.contiguous((dim,)))

    def add(
        self,
        op: str,
        attrs: tuple[Any, ...],
        inputs: Sequence["Handle"],
        shape: Shape,
        dtype: DType,
        expansion: "Handle | None" = None,
    ) -> Node:
        """Append a node; operands are what the given tensors view."""
        if self.search_space is not None:
            raise RuntimeError("the search space is built: the graph can no longer change")
        operands = tuple(Operand(t.node, t.view) for t in inputs)
        of_primitives = Operand(expansion.node, expansion.view) if expansion else None
        node = Node(len(self.nodes), op, attrs, operands, shape, dtype, of_primitives)
        self.nodes.append(node)
        return node

    def dim(self, name: str, least: int = 0, most: int = 2**31 - 1) -> Dim:
        """A symbol that is only ever between two values, both included: executions outside are refused."""
        if not 0 <= least <= most:
            raise ShapeError(f"dim {name!r} needs 0 <= least <= most, not {least}..{most}")
        self.ranges[name] = range(least, most + 1)
        return symbol(name)

    def set_dim(self, name: str, value: int) -> None:
        """Value of a symbol for the executions that do not give one."""
        self._check_ranges({name: value})
        self.dims[name] = value

    def _check_ranges(self, dims: Mapping[str, int]) -> None:
        for name, allowed in self.ranges.items():
            if name in dims and dims[name] not in allowed:
                raise DimError(
                    f"dim {name!r} = {dims[name]} is outside its range {allowed[0]}..{allowed[-1]}"
                )

    def build_search_space(
        self, runtime: "Runtime | type[Runtime]", options: "CompileOptions | None" = None
    ) -> "SearchSpace":
        """First half of `compile`: the e-graph of every region. Buckets are fixed from here on."""
        from engine.compiler.options import CompileOptions
        from engine.compiler.space import SearchSpace

        options = options or CompileOptions()
        if (
            self.search_space is not None
            and self.search_space.options.dim_buckets != options.dim_buckets
        ):
            raise RuntimeError("buckets cannot change after the search space is built")
        if self.search_space is None:
            self.search_space = SearchSpace.build(self, runtime.kernels, options)
        return self.search_space

    def search(
        self,
        runtime: "Runtime",
        options: "CompileOptions | None" = None,
        rng: "random.Random | None" = None,
    ) -> "Runtime":
        """Second half of `compile`: find the fastest program of each bucket on this machine and load it."""
        from engine.compiler.options import CompileOptions
        from engine.compiler.search import search

        if self.search_space is None:
            raise RuntimeError("build_search_space comes before search")
        programs, runtime.reports = search(self, runtime, options or CompileOptions(), rng)
        runtime.load(self, programs)
        return runtime

    def search_with_rng(
        self, runtime: "Runtime", options: "CompileOptions", rng: "random.Random"
    ) -> "Runtime":
        return self.search(runtime, options, rng)

    def compile(self, runtime: "Runtime", options: "CompileOptions | None" = None) -> "Runtime":
        """Search for the fastest programs on `runtime` and load them; returns the runtime."""
        self.build_search_space(runtime, options)
        return self.search(runtime, options)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of all symbols in the shapes of its nodes."""
        dims = {d for node in self.nodes for d in node.shape if isinstance(d, Dim)}
        return frozenset(s for d in dims for s in d.symbols)

    def resolve(self, dims: Mapping[str, int] | None) -> dict[str, int]:
        """Symbols' values of one execution. Raises `DimError` for one outside its range."""
        known = {**self.dims, **(dims or {})}
        self._check_ranges(known)
        return known
