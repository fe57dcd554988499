"""All operations, found by walking this package's folders."""

import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import engine.ops
from engine.ops.base import Fold, Kernel, Op

_HOME = Path(engine.ops.__file__).parent
RULESETS = ("fuse", "commute", "lift", "lower")


@cache
def all_ops() -> dict[str, Op]:
    """Every op by the name of its constructor."""
    folders = sorted(m.name for m in pkgutil.iter_modules([str(_HOME)]) if m.ispkg)
    ops = [op for name in folders for op in import_module(f"engine.ops.{name}").OPS]
    return {op.name: op for op in ops}


@cache
def graph_ops() -> frozenset[str]:
    """Ops with a NumPy meaning that say what is computed, not how: what the reference runtime runs."""
    return frozenset(name for name, op in all_ops().items() if type(op) is Op)


@cache
def native_ops() -> frozenset[str]:
    """Ops that the native runtime runs, or folds at load."""
    return frozenset(name for name, op in all_ops().items() if isinstance(op, Kernel | Fold))


@cache
def program_text() -> str:
    """The egglog program of declarations and rules, without any graph."""
    forms = [
        form for path in sorted(_HOME.glob("*/rules.egg")) for form in _forms(path.read_text())
    ]
    declared = [f for f in forms if re.match(r"\((sort|constructor|relation|function)\b", f)]
    rules = [f for f in forms if f not in declared]
    sorts = [f for f in declared if f.startswith("(sort")]
    return "\n".join(
        [
            "(datatype Dims (Nil String) (Dim String Dims))",
            "(sort IR)",
            *sorts,
            "(constructor Input (String) IR)",
            "(function dtype (IR) String :merge new)",
            "(relation contiguous (Dims Dims)) ; (contiguous v s): view v reads a dense tensor of shape s",
            "(relation weight (IR)) ; the same in every execution",
            "(relation multiple_of_8 (String)) ; of dimensions that are numbers",
            *(_constructor(op) for op in all_ops().values()),
            *(f for f in declared if f not in sorts),
            *(f"(ruleset {name})" for name in RULESETS),
            *rules,
        ]
    )


def _constructor(op: Op) -> str:
    inputs = ["IR"] * op.arity + ["FE"] * op.takes_expression
    return f"(constructor {op.name} ({' '.join([*op.sorts, *inputs])}) IR)"


def _forms(text: str) -> Iterator[str]:
    """Top-level parenthesised forms of an egglog file, comments removed."""
    code = re.sub(r";[^\n]*", "", text)
    depth, start = 0, 0
    for at, char in enumerate(code):
        if char == "(":
            start = at if depth == 0 else start
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                yield " ".join(code[start : at + 1].split())


@cache
def version() -> str:
    """Hash of every file that decides what a program computes: part of an artifact's key."""
    digest = sha256()
    for folder in (_HOME, _HOME.parent / "compiler", _HOME.parent / "runtimes"):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in {".py", ".egg", ".c", ".h"}):
            digest.update(path.relative_to(_HOME.parent).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
