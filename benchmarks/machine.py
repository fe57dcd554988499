"""Where and when a figure was measured, and what else the machine was doing."""

import platform
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import psutil

ROOT = Path(__file__).parents[1]


def describe() -> dict[str, str]:
    """Processor, memory, system, Python, commit and date, for the head of a result."""
    gib = psutil.virtual_memory().total / (1 << 30)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": f"{psutil.cpu_count(logical=False)} physical, {psutil.cpu_count()} logical",
        "memory": f"{gib:.1f} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    """The checked-out commit, with a plus where files differ from it."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


@dataclass
class OtherLoad:
    """How many cores processes other than this one and its children use, on average."""

    _start_s: float = field(default_factory=perf_counter)
    _start_cpu_s: float = field(default_factory=lambda: _busy_s() - _own_s())

    def cores(self) -> float:
        """Since this was made."""
        used_s = _busy_s() - _own_s() - self._start_cpu_s
        return max(0.0, used_s / (perf_counter() - self._start_s))


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_s() -> float:
    """Of the processes that live and, in the last two figures, of children that have ended."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)
