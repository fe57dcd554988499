"""What a search returns: for each bucket, the instructions of each region in order."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from engine.compiler.extract import Genome, Instruction
from engine.compiler.options import DimBucket
from engine.compiler.space import RegionSpace


class BucketError(ValueError):
    """A dimension is outside every bucket, or missing."""


@dataclass(frozen=True, eq=False)
class Phase:
    """A region's program: what runs at load, and what runs `iterations` times a step."""

    space: RegionSpace
    genome: Genome
    instructions: tuple[Instruction, ...]

    @property
    def iterations(self) -> int:
        return self.space.region.iterations

    @property
    def steps(self) -> tuple[Instruction, ...]:
        return tuple(i for i in self.instructions if not i.constant)

    @property
    def folds(self) -> tuple[Instruction, ...]:
        return tuple(i for i in self.instructions if i.constant)

    def __str__(self) -> str:
        times = f" x {self.iterations}" if self.iterations > 1 else ""
        lines = [f"region of {len(self.space.region.nodes)} nodes{times}:"]
        for i in self.steps:
            shape = ",".join(map(str, i.spec.shape))
            inner = f" = {i.call.expression}" if i.call.expression else ""
            inputs = " ".join(f"%{c}" for c in i.inputs)
            lines.append(
                f"  %{i.output}: {i.spec.dtype.value}[{shape}] <- {i.op.name} {inputs}{inner}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Program:
    """The program of one bucket: ranges of the bucketed symbols, and the values it was timed at."""

    bucket: Mapping[str, DimBucket]
    dims: Mapping[str, int]
    phases: tuple[Phase, ...]

    @property
    def fixed(self) -> dict[str, int]:
        """Symbols that have one value in this bucket: kernels are specialised for them."""
        return {name: b.min for name, b in self.bucket.items() if b.min == b.max}

    @property
    def name(self) -> str:
        return " ".join(f"{symbol}={b}" for symbol, b in self.bucket.items()) or "any"

    def __str__(self) -> str:
        return "\n".join([f"bucket {self.name}", *map(str, self.phases)])


@dataclass(frozen=True)
class CompiledPrograms:
    """Programs of all buckets: every combination of the buckets of each symbol."""

    programs: tuple[Program, ...]

    @cached_property
    def _axes(self) -> dict[str, list[DimBucket]]:
        """Each bucketed symbol's buckets, in order of their values."""
        return {
            symbol: sorted({p.bucket[symbol] for p in self.programs}, key=lambda b: b.min)
            for symbol in self.programs[0].bucket
        }

    @cached_property
    def _places(self) -> dict[tuple[int, ...], int]:
        """Index of the program by the place of its bucket on each axis."""
        return {
            tuple(axis.index(p.bucket[symbol]) for symbol, axis in self._axes.items()): at
            for at, p in enumerate(self.programs)
        }

    def find(self, dims: Mapping[str, int]) -> int:
        """Index of the program for some dims: a bisection for each bucketed symbol and one lookup.

        Raises `BucketError` that names the dim, its value and the buckets.
        """
        place = []
        for symbol, axis in self._axes.items():
            value = dims.get(symbol, -1)
            at = bisect_left(axis, value, key=lambda b: b.max)
            if at == len(axis) or value not in axis[at]:
                buckets = ", ".join(map(str, axis))
                raise BucketError(
                    f"dim {symbol!r} = {dims.get(symbol)} is outside its buckets: {buckets}"
                )
            place.append(at)
        return self._places[tuple(place)]
