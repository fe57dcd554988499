"""Element-wise expressions: what one fused region computes for each element."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.compiler.dtype import DType
from engine.compiler.shape import View


@dataclass(frozen=True)
class Expression:
    """A tree over one iteration shape.

    op: "Load" (data: leaf number and View), "Const" (data: value text), "Iota" (data: View of 0, 1, 2, ...), "Cast", or
    a primitive's name. `dtype` is the value's type.
    """

    op: str
    dtype: DType
    children: tuple["Expression", ...] = ()
    data: Any = None

    def walk(self) -> Iterator["Expression"]:
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def views(self) -> list[View]:
        """Every view that the tree reads through, loads and iotas."""
        return [
            e.data[1] if e.op == "Load" else e.data for e in self.walk() if e.op in ("Load", "Iota")
        ]

    def __str__(self) -> str:
        inside = ", ".join(str(c) for c in self.children)
        match self.op:
            case "Load":
                return f"x{self.data[0]}"
            case "Const":
                return str(self.data)
            case "Cast":
                return f"{self.dtype.value}({inside})"
            case _:
                return f"{self.op.lower()}({inside})"
