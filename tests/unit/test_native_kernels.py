"""What other tests of kernels do not reach: products over unpacked codes, the prelude's functions, other builds."""

import ctypes
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import kernels
import numpy as np
import pytest
from kernels import Case

from engine.compiler.dtype import DType
from engine.compiler.shape import symbol
from engine.ops.base import Array, Kernel, Spec
from engine.ops.quant_matmul.layout import Format, pack
from engine.ops.quantize_rows import rows_spec
from engine.ops.registry import all_ops
from engine.runtimes.native import kernels as native
from engine.runtimes.toolchain import find_toolchain

M = symbol("m")
HERE = Path(__file__).parent


# -- products of more rows than are read straight from the packed weights ----------------------------------------------


@pytest.mark.parametrize("name", ["QuantMatmul", "QuantGateUp"])
@pytest.mark.parametrize(
    "form", [Format(43, 96, 32, 4, 16, True), Format(9, 128, 64, 8, 32, False)]
)
def test_rows_have_the_same_bits_where_codes_are_unpacked_first(name: str, form: Format) -> None:
    rng = np.random.default_rng(1)
    groups = (form.n, form.k // form.group)
    numbers = rng.uniform(-0.1, 0.1, (2, *groups)).astype(f"f{form.scale_bits // 8}")
    codes = rng.integers(0, 256, (form.n, form.k * form.bits // 8), np.uint8)
    packed = pack(form, codes, numbers[0], numbers[1] if form.has_minimum else None)
    weights = [packed] * (2 if name == "QuantGateUp" else 1)
    unit = ("swiglu",) if name == "QuantGateUp" else ()
    params = ("m", str(form.n), str(form.k), str(form.group), *unit)
    specs = (
        rows_spec(M, form.k, form.group),
        *[Spec((form.bytes,), DType.U8, str(form))] * len(weights),
    )
    x = rng.standard_normal((131, form.k), np.float32)
    quantize = Case(
        "QuantizeRows", ("m", str(form.k), str(form.group)), (Spec((M, form.k), DType.F32),)
    )
    op = all_ops()[name]
    assert isinstance(op, Kernel)
    cases = [Case(name, params, specs, variant=v) for v in range(len(op.variants))]
    kernels.prepare([quantize, *cases], "m")
    rows = quantize.run([x], {"m": len(x)})
    want = np.concatenate([cases[0].run([row[None], *weights], {"m": 1}, 1) for row in rows])
    for case in cases:
        for m, threads in ((64, 2), (65, 2), (66, 1), (131, 3)):
            found = case.run([rows[:m], *weights], {"m": m}, threads)
            np.testing.assert_array_equal(found, want[:m])


# -- functions of the prelude ------------------------------------------------------------------------------------------

_FUNCTIONS = """
void exp2_all(float *restrict y, const float *restrict x, long n) {
  for (long i = 0; i < n; i++) y[i] = egg_exp2f(x[i]);
}
void exp_all(float *restrict y, const float *restrict x, long n) {
  for (long i = 0; i < n; i++) y[i] = egg_expf(x[i]);
}
"""


@cache
def library() -> ctypes.CDLL:
    path = find_toolchain().library(native.text([]) + _FUNCTIONS, kernels.DIRECTORY)
    return ctypes.CDLL(str(path))


def apply(name: str, x: Array) -> Array:
    y = np.empty_like(x)
    function = getattr(library(), name)
    function(ctypes.c_void_p(y.ctypes.data), ctypes.c_void_p(x.ctypes.data), ctypes.c_long(len(x)))
    return y


@pytest.mark.parametrize(("name", "exact"), [("exp2_all", np.exp2), ("exp_all", np.exp)])
def test_exponentials_are_within_two_units_in_the_last_place(name: str, exact: np.ufunc) -> None:
    steps = np.linspace(-150, 130, 400_001, dtype=np.float32)
    near = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    x = np.concatenate([steps, near, near * np.float32(1e-3)])
    y, want = apply(name, x), exact(x.astype(np.float64))
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32)
    np.testing.assert_array_equal(np.isinf(y), np.isinf(rounded))
    finite = np.isfinite(rounded)
    assert (np.abs(y[finite] - want[finite]) <= 2 * np.spacing(rounded[finite])).all()


@pytest.mark.parametrize("name", ["exp2_all", "exp_all"])
def test_exponentials_of_the_edges(name: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, 1e-40], np.float32)
    want = np.array([np.nan, np.inf, 0, np.inf, 0, 1, 1, 1], np.float32)
    np.testing.assert_array_equal(apply(name, x), want)


@pytest.mark.parametrize("name", ["exp2_all", "exp_all"])
def test_exponentials_are_the_same_alone_and_eight_at_a_time(name: str) -> None:
    x = np.random.default_rng(0).uniform(-90, 90, 999).astype(np.float32)
    alone = np.concatenate([apply(name, x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_array_equal(apply(name, x).view(np.int32), alone.view(np.int32))


# -- other builds ------------------------------------------------------------------------------------------------------

_SANITIZERS = "-O1 -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all"
_BUILDS = {
    "without vector instructions": "-mno-avx2 -mno-avx -mno-fma -mno-f16c",
    "with sanitizers": _SANITIZERS,
}


@pytest.mark.skipif("EGGLM_TEST_BUILDS" not in os.environ, reason="EGGLM_TEST_BUILDS is not set")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("build", _BUILDS)
def test_kernels_of_another_build(build: str, tmp_path: Path) -> None:
    """Every test of a kernel once more, each in minutes."""
    compiler = tmp_path / "cc"
    flags = f"{_BUILDS[build]} -Wno-psabi"
    compiler.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec gcc "$@" {flags}\n')
    compiler.chmod(0o755)
    environment = os.environ | {"CC": str(compiler), "EGGLM_TEST_CACHE": str(tmp_path / "cache")}
    if build == "with sanitizers":
        # What a sanitised library needs has to be in the process before it.
        names = ("libasan.so", "libubsan.so")
        found = [
            subprocess.check_output(["gcc", f"-print-file-name={n}"], text=True) for n in names
        ]
        environment["LD_PRELOAD"] = " ".join(path.strip() for path in found)
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
    del environment["EGGLM_TEST_BUILDS"]
    patterns = ("test_*kernel*.py", "test_composed.py", "test_blocks.py")
    files = sorted(str(p) for pattern in patterns for p in HERE.glob(pattern))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files],
        env=environment,
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
