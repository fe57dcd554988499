"""Single-op timings on disk: kept between searches, and never trusted blindly."""

import math
from pathlib import Path

import pytest

from engine.compiler import nn
from engine.compiler.graph import Graph
from engine.compiler.options import CompileOptions
from engine.runtimes.native.runtime import NativeRuntime
from engine.runtimes.timings import OpTimings


def test_times_are_found_again_and_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "timings"
    one, other = OpTimings(path), OpTimings(path)
    one.add({"a": 1e-6, "b": 2.5e-3})
    other.add({"a": 3e-6})
    again = OpTimings(path)
    assert (again.get("a"), again.get("b"), again.get("c")) == (3e-6, 2.5e-3, None)


@pytest.mark.parametrize("seconds", [math.inf, math.nan, 0.0, -1.0])
def test_what_is_no_time_is_not_kept(tmp_path: Path, seconds: float) -> None:
    timings = OpTimings(tmp_path / "timings")
    timings.add({"a": seconds})
    assert timings.get("a") is None
    (tmp_path / "timings").write_text(f"a {seconds!r}\n")
    assert OpTimings(tmp_path / "timings").get("a") is None


def test_damage_costs_only_its_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "timings"
    path.write_bytes(b"a 1e-6\n\xff\xfe\x00 2e-6\nb\n\nc 1 2\nd 4e-6\ne 5e")
    timings = OpTimings(path)
    assert (timings.get("a"), timings.get("d")) == (1e-6, 4e-6)
    assert [timings.get(key) for key in "bce"] == [None] * 3
    timings.add({"f": 6e-6})  # after a line that was cut off
    assert OpTimings(path).get("f") == 6e-6


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    timings = OpTimings(tmp_path / "no such folder" / "timings")
    timings.add({"a": 1e-6})
    assert timings.get("a") == 1e-6


def test_a_second_search_times_no_op_again(tmp_path: Path) -> None:
    def search(width: int, threads: int = 1) -> tuple[int, int]:
        graph = Graph()
        x, weight = graph.tensor((5, width)), graph.tensor((24, width)).persist()
        nn.linear(x, weight).sigmoid().output()
        runtime = NativeRuntime(threads=threads, directory=tmp_path)
        graph.compile(runtime, CompileOptions(search_graph_limit=2))
        (report,) = runtime.reports
        return report.timed_ops, report.remembered_ops

    timed, remembered = search(width=32)
    assert (timed > 0, remembered) == (True, 0)
    assert search(width=32) == (0, timed)
    assert search(width=64)[0] > 0
    other_device = search(width=32, threads=2)
    assert (other_device[0] > 0, other_device[1]) == (True, 0)
