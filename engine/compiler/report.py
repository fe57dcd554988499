"""What a search saw, as data and as text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.compiler.program import Program
from engine.ops.base import Kernel


@dataclass(frozen=True)
class OpRow:
    """One op of a program: executions a step, and of all of them together the seconds, bytes and operations."""

    name: str
    executions: int
    seconds: float
    loaded: float
    stored: float
    flops: float


@dataclass
class BucketReport:
    """The search of one bucket. Times of whole programs are in seconds, the least of several runs."""

    name: str
    dims: dict[str, int] = field(default_factory=dict)
    classes: int = 0
    nodes: int = 0
    candidates: float = 0.0
    ranked: int = 0
    timed_ops: int = 0
    remembered_ops: int = 0
    timed_programs: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    first_s: float = 0.0
    best_s: float = 0.0
    search_s: float = 0.0
    rows: list[OpRow] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "rejected": dict(self.rejected)}  # asdict counts a counter's pairs

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "BucketReport":
        rows = [OpRow(**row) for row in data["rows"]]
        return cls(**{**data, "rows": rows, "rejected": Counter(data["rejected"])})


def op_rows(program: Program, seconds: Sequence[float]) -> list[OpRow]:
    """Rows of a program whose ops took `seconds`, each summed over its region's iterations."""
    rows, at = [], 0
    for phase in program.phases:
        for instruction in phase.steps:
            assert isinstance(instruction.op, Kernel)
            work = instruction.op.counts(instruction.call, program.dims)
            n = phase.iterations
            detail = f" {instruction.call.expression}" if instruction.call.expression else ""
            rows.append(
                OpRow(
                    instruction.op.name + detail,
                    n,
                    float(seconds[at]),
                    n * work.read,
                    n * work.written,
                    n * work.flops,
                )
            )
            at += 1
    return rows


def profile_line(seconds: float, kernels: int, host_ops: int = 0) -> str:
    """A candidate's line: how long it takes, and how many kernels and host-library calls it makes."""
    return f"{duration(seconds)} | [KRN: {kernels} HOST: {host_ops}]"


def duration(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


_COLUMNS = ("Kernel", "Runs", "Time (us)", "Loaded", "Stored", "Agg FLOPS", "BW (GB/s)", "TFLOPS")


def table(rows: Sequence[OpRow]) -> str:
    """Rows and their total as text: what each op loads, stores and computes in a step, and the rates it reaches."""
    total = OpRow(
        "Total",
        sum(r.executions for r in rows),
        sum(r.seconds for r in rows),
        sum(r.loaded for r in rows),
        sum(r.stored for r in rows),
        sum(r.flops for r in rows),
    )
    lines = [_COLUMNS, *(_cells(row) for row in (*rows, total))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    text = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    rule = "-" * max(map(len, text))
    return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])


def _cells(row: OpRow) -> tuple[str, ...]:
    name = row.name if len(row.name) <= 60 else row.name[:57] + "..."
    seconds = row.seconds or float("inf")
    return (
        name,
        str(row.executions),
        f"{row.seconds * 1e6:.1f}",
        size(row.loaded),
        size(row.stored),
        f"{row.flops:.3g}",
        f"{(row.loaded + row.stored) / seconds / 1e9:.2f}",
        f"{row.flops / seconds / 1e12:.4f}",
    )


def size(count: float) -> str:
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def text(report: BucketReport) -> str:
    """One bucket's search and its winner."""
    kernels = sum(row.executions for row in report.rows)
    gain = report.first_s / report.best_s if report.best_s else 1.0
    rejected = ", ".join(f"{n} {reason}" for reason, n in report.rejected.items()) or "none"
    return "\n".join(
        [
            f"bucket {report.name}, timed at {', '.join(f'{k}={v}' for k, v in report.dims.items())}",
            f"  space      {report.classes} classes, {report.nodes} e-nodes, about {report.candidates:.1e} candidates",
            f"  search     {report.ranked} candidates ranked, {report.timed_ops} ops ({report.remembered_ops} more "
            f"were timed before) and {report.timed_programs} whole programs timed in {report.search_s:.1f} s; "
            f"rejected: {rejected}",
            f"  first      {profile_line(report.first_s, kernels)}   (cheapest by roofline)",
            f"  winner     {profile_line(report.best_s, kernels)}   ({gain:.2f} times as fast)",
            table(report.rows),
        ]
    )
