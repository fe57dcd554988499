"""Micro-benchmark of the native product kernels: GB/s and operations a second beside what the machine can do.

`python -m benchmarks.kernels [--threads 2] [--rows 1,16] [--kernels QuantMatmul]`. Weights are cold: a run walks over
copies of them that together exceed the caches, as the layers of a model do. Figures are the fastest of interleaved
runs: a busy neighbour on the machine only ever slows one down.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim
from engine.ops.base import Array, Call, Kernel, Source, Spec
from engine.ops.packed_matmul import LANES, packed_row_bytes
from engine.ops.quant_matmul.layout import Format
from engine.ops.quantize_rows import quantize, rows_spec
from engine.ops.registry import all_ops
from engine.runtimes.native.driver import Driver, address_of, dims_array
from engine.runtimes.native.kernels import KernelLibrary
from engine.runtimes.native.linking import DriverProgram, Slots, assemble
from engine.runtimes.toolchain import find_toolchain

SHAPES = ((576, 576), (576, 192), (576, 1536), (1536, 576), (576, 49152))  # (k, n) of SmolLM2
COLD_BYTES = 96 << 20
GROUP = 32


@dataclass(frozen=True)
class Case:
    """One kernel on one shape: `copies` of the weights, each multiplied once in a run."""

    kernel: str
    weights: str  # "q4", "q8", "f32", "f16" or "bf16"
    m: int
    k: int
    n: int

    @property
    def products(self) -> int:
        return 2 if "GateUp" in self.kernel else 1

    @property
    def weight_bytes(self) -> int:
        return int(self.weights_spec.bytes({})) * self.products

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.k * self.n * self.products

    @property
    def copies(self) -> int:
        """Enough to be cold; fewer where the arithmetic alone takes long."""
        return max(2, min(COLD_BYTES // self.weight_bytes, int(8e9 / self.flops)))

    @property
    def weights_spec(self) -> Spec:
        if self.weights in ("q4", "q8"):
            form = Format(self.n, self.k, GROUP, int(self.weights[1]), 16, self.weights == "q4")
            return Spec((form.bytes,), DType.U8, str(form))
        dtype = DType(self.weights)
        size = -(-self.n // LANES) * LANES * packed_row_bytes(self.k, dtype)
        return Spec((size,), DType.U8, f"lanes {dtype.value}")

    @property
    def rows_spec(self) -> Spec:
        if self.weights in ("q4", "q8"):
            return rows_spec(self.m, self.k, GROUP)
        return Spec((self.m, self.k), DType.F32)

    def rows(self, rng: np.random.Generator) -> Array:
        x = rng.standard_normal((self.m, self.k), np.float32)
        return quantize(x, GROUP) if self.weights in ("q4", "q8") else x

    def call(self) -> Call:
        params = ["1" if self.m == 1 else "m", str(self.n), str(self.k)]
        if self.weights in ("q4", "q8"):
            params.append(str(GROUP))
        if self.products == 2:
            params.append("swiglu")
        residual = (Spec((self.m, self.n), DType.F32),) if self.kernel.endswith("Add") else ()
        return Call(
            tuple(params), (self.rows_spec, *[self.weights_spec] * self.products, *residual)
        )


class Bench:
    """A driver, compiled kernels, and the buffers that programs read."""

    def __init__(self, threads: int, directory: Path) -> None:
        toolchain = find_toolchain()
        self.driver = Driver(toolchain, directory, threads)
        self.library = KernelLibrary(toolchain, directory)
        self._keep: list[object] = []

    def program(self, case: Case, variant: int, buffers: list[Array]) -> DriverProgram:
        """`case` over every copy of its weights, which lie in `buffers[0]`."""
        op = all_ops()[case.kernel]
        assert isinstance(op, Kernel)
        made = op.source(case.call(), _code)
        source = Source(made.template, (*made.macros, *op.variants[variant]))
        self.library.add([source])
        weights, y, rows, residual = map(address_of, buffers)
        size = case.weight_bytes // case.products
        copies = [
            tuple(weights + (i * case.products + p) * size for i in range(case.copies))
            for p in range(case.products)
        ]
        slots = Slots()
        operands = [slots.operand((y,)), slots.operand((rows,)), *map(slots.operand, copies)]
        if case.kernel.endswith("Add"):
            operands.append(slots.operand((residual,)))
        ops = [(self.library.address(source), True, operands)]
        program, keep = assemble([(case.copies, ops)], slots)
        self._keep.append(keep)
        return program

    def buffers(self, case: Case) -> list[Array]:
        """Weights (all copies, any bytes), output, activations, residual."""
        rng = np.random.default_rng(0)
        weights = self.driver.array(case.weight_bytes * case.copies)
        weights[:] = 0x1C  # as an f16 scale it is 0.004: ordinary numbers everywhere
        rows = case.rows(rng)
        held = self.driver.array(rows.nbytes)
        held[:] = rows.view(np.uint8).reshape(-1)
        out = [self.driver.array(case.m * case.n * 4) for _ in range(2)]
        return [weights, out[0], held, out[1]]

    def least(self, programs: Sequence[DriverProgram], m: int, trials: int) -> list[float]:
        """Fastest run of each program, in seconds; runs are interleaved."""
        dims = dims_array(["m"], {"m": m})
        times = [[self.driver.seconds(p, dims) for p in programs] for _ in range(trials)]
        return [min(column) for column in zip(*times, strict=True)]

    def probe(self, macros: tuple[tuple[str, str], ...], size: int) -> float:
        """Seconds of a loop in `probe.c` over `size` bytes."""
        source = Source((Path(__file__).parent / "probe.c").read_text(), macros)
        self.library.add([source])
        data, out = self.driver.array(size), self.driver.array(4096)
        data[:] = 1  # pages that were never written are all the same one
        slots = Slots()
        operands = [slots.operand((address_of(out),)), slots.operand((address_of(data),))]
        program, keep = assemble([(1, [(self.library.address(source), True, operands)])], slots)
        seconds = self.least([program], 1, 12)[0]
        del keep
        return seconds

    def bandwidth(self) -> float:
        """Bytes a second that all threads together read from memory."""
        size = 256 << 20
        return size / self.probe((("SIZE", str(size)),), size)

    def madd_rate(self) -> float:
        """16-bit multiply-adds a second, counted as 2 operations each, of all threads together."""
        claims, madds = 200, 40000
        return claims * madds * 32 / self.probe((("SIZE", str(claims)), ("MADDS", str(madds))), 64)


def _code(dim: int | Dim) -> str:
    return str(dim) if isinstance(dim, int) else f"({dim.code({'m': 'dims[0]'})})"


def cases(kernels: Sequence[str], rows: Sequence[int]) -> Iterator[Case]:
    for kernel in kernels:
        quantised = kernel.startswith("Quant")
        for weights in ("q4", "q8") if quantised else ("f32", "f16", "bf16"):
            for m in rows:
                for k, n in SHAPES:
                    if "GateUp" in kernel and (k, n) != (576, 1536):
                        continue
                    if n == 49152 and m > 64:
                        continue  # logits are wanted of few rows
                    yield Case(kernel, weights, m, k, n)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,4,16,64,512")
    parser.add_argument("--kernels", default="QuantMatmul,QuantGateUp,PackedMatmul")
    parser.add_argument("--weights", default="q4,q8,f32,f16,bf16")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path(gettempdir()) / "egglm-bench-kernels")
    options = parser.parse_args()
    bench = Bench(options.threads, options.cache)
    bandwidth, rate = bench.bandwidth(), bench.madd_rate()
    print(f"{options.threads} threads: {bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} 16-bit GOP/s")
    print(
        "kernel       w        m     k      n       us   GB/s  of BW   GOP/s  of peak  variants, us"
    )
    rows = [int(m) for m in options.rows.split(",")]
    for case in cases(options.kernels.split(","), rows):
        if case.weights not in options.weights.split(","):
            continue
        op = all_ops()[case.kernel]
        assert isinstance(op, Kernel)
        buffers = bench.buffers(case)
        programs = [bench.program(case, v, buffers) for v in range(len(op.variants))]
        times = [t / case.copies for t in bench.least(programs, case.m, options.trials)]
        best = min(times)
        read, ops = case.weight_bytes / best, case.flops / best
        print(
            f"{case.kernel:12} {case.weights:5} {case.m:4} {case.k:5} {case.n:6} {best * 1e6:8.1f}",
            f"{read / 1e9:6.1f} {read / bandwidth:6.0%} {ops / 1e9:7.1f} {ops / rate:8.0%} ",
            *(f"{t * 1e6:.1f}" for t in times),
            flush=True,
        )


if __name__ == "__main__":
    main()
