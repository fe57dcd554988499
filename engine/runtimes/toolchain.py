"""The machine's C compiler: found once, it turns generated C into shared libraries."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

_FLAGS = (
    "-O3",
    "-std=gnu11",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",  # clamps are minima and maxima, not branches: loops over them vectorise
    "-fwrapv",  # integers overflow as NumPy's do
    "-fPIC",
    "-shared",
)


class ToolchainError(RuntimeError):
    """There is no C compiler, or it refused a program; the message has its words."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler's command and the flags that libraries are built with."""

    command: tuple[str, ...]
    flags: tuple[str, ...] = _FLAGS

    @cached_property
    def target(self) -> str:
        """The compiler's version and the instruction sets that it compiles for here."""
        version = self._output("--version").splitlines()[0]
        macros = self._output("-march=native", "-dM", "-E", "-x", "c", os.devnull)
        return f"{version} {sha256(macros.encode()).hexdigest()[:12]}"

    def library(self, source: str, directory: Path) -> Path:
        """A shared library of a C program, compiled unless the directory has it. Raises `ToolchainError`."""
        identity = "\0".join((*self.command, *self.flags, self.target, source))
        path = directory / f"{sha256(identity.encode()).hexdigest()[:24]}.so"
        if path.exists():
            return path
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=directory) as work:
            code, built = Path(work) / "code.c", Path(work) / "code.so"
            code.write_text(source)
            self._check(
                [*self.command, *self.flags, str(code), "-o", str(built), "-lm", "-lpthread"]
            )
            os.replace(built, path)
        return path

    def _output(self, *arguments: str) -> str:
        return self._check([*self.command, *arguments])

    @staticmethod
    def _check(command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ToolchainError(f"{command[0]} failed: {done.stderr.strip()[:2000]}")
        return done.stdout


def find_toolchain() -> Toolchain:
    """The compiler in `CC`, else cc, gcc, clang, or zig's; raises `ToolchainError` where there is none that works."""
    chosen = os.environ.get("CC")
    candidates = (
        [tuple(chosen.split())] if chosen else [("cc",), ("gcc",), ("clang",), ("zig", "cc")]
    )
    if not chosen:
        candidates.append((sys.executable, "-m", "ziglang", "cc"))
    for command in candidates:
        if shutil.which(command[0]):
            toolchain = Toolchain(command)
            try:
                toolchain.target  # noqa: B018
            except ToolchainError:
                continue
            return toolchain
    tried = ", ".join(" ".join(c) for c in candidates)
    raise ToolchainError(f"no C compiler works here (tried {tried})")
