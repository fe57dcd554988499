"""What a search returns: for each bucket, the instructions of each region in order."""

from collections.abc import Mapping
from dataclasses import dataclass

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
    """Programs of all buckets."""

    programs: tuple[Program, ...]

    def find(self, dims: Mapping[str, int]) -> int:
        """Index of the program for some dims; raises `BucketError` that names the dim, its value and the buckets."""
        for at, program in enumerate(self.programs):
            if all(dims.get(symbol, -1) in b for symbol, b in program.bucket.items()):
                return at
        for symbol in self.programs[0].bucket:
            buckets = list(dict.fromkeys(str(p.bucket[symbol]) for p in self.programs))
            value = dims.get(symbol)
            if not any(value is not None and value in p.bucket[symbol] for p in self.programs):
                raise BucketError(
                    f"dim {symbol!r} = {value} is outside its buckets: {', '.join(buckets)}"
                )
        raise BucketError(f"no bucket holds {dict(dims)}")
