"""The one place that touches egglog: its low-level bindings, fed with program text.

The extension file is loaded by itself (36 ms), since `import egglog` brings the whole typed interface (400 ms). Version
13 copies the source text into each syntax node, so a program is parsed one command at a time there; version 14 has a
query planner that explodes on long patterns and is switched off (`no_decomp`).
"""

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import logging
import sys
from functools import cache
from types import ModuleType
from typing import Any


@cache
def _bindings() -> ModuleType:
    logging.getLogger("egglog").setLevel(logging.WARNING)  # it logs each command
    files = importlib.metadata.files("egglog") or []
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    path = next(
        f.locate() for f in files if f.name.startswith("bindings.") and f.name.endswith(suffixes)
    )
    spec = importlib.util.spec_from_file_location("egglog.bindings", str(path))
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load egglog's extension at {path}")
    module = sys.modules.get("egglog.bindings") or importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class EGraphError(RuntimeError):
    """egglog refused a program; the message has its words."""


class EGraph:
    """One e-graph. Not to be touched from another thread than the one that made it."""

    def __init__(self) -> None:
        self._egglog = _bindings()
        self._one_by_one = not hasattr(self._egglog.EGraph, "parse_and_run_program")
        self._graph = (
            self._egglog.EGraph() if self._one_by_one else self._egglog.EGraph(no_decomp=True)
        )

    def run(self, commands: str) -> dict[str, float]:
        """Run commands, one a line; returns the seconds that each rule took, by its text."""
        try:
            if self._one_by_one:
                lines = (line for line in commands.splitlines() if line)
                results = [
                    result
                    for line in lines
                    for result in self._graph.run_program(*self._graph.parse_program(line))
                ]
            else:
                results = self._graph.parse_and_run_program(commands)
        except BaseException as error:  # egglog's panics are no `Exception`s
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise EGraphError(str(error)) from error
        seconds: dict[str, float] = {}
        for result in results:
            report = getattr(result, "report", None)
            for rule, time in getattr(report, "search_and_apply_time_per_rule", {}).items():
                seconds[rule] = seconds.get(rule, 0.0) + time.total_seconds()
        return seconds

    def serialize(self, roots: list[str]) -> dict[str, Any]:
        """Nodes reachable from the named globals: {"nodes": {id: {op, children, eclass, ...}}, ...}."""
        span = self._egglog.PanicSpan()
        exported = self._graph.serialize([self._egglog.Var(span, root) for root in roots])
        return dict(json.loads(exported.to_json()))
