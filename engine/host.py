"""What this process may use of the machine: the limits of its control groups (containers, services) count as well.

Both versions of Linux's control groups are read; elsewhere the machine's own figures stand.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def available_memory(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> int:
    """Bytes that can be taken: what the system has free, or what a group's limit leaves if that is less.

    Page cache that can be dropped counts as free.
    """
    available = psutil.virtual_memory().available
    for folder in _folders("memory", membership, groups):
        for limit_file, used_file, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and used is not None:
                cache = _statistic(folder / "memory.stat", cache_key)
                available = min(available, max(0, limit - used + cache))
    return available


def usable_cores(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> int:
    """Physical cores, or fewer where the process is bound to fewer processors or has a quota of their time."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    for folder in _folders("cpu", membership, groups):
        quota, period = _quota(folder)
        if quota is not None and period:
            cores = min(cores, quota // period)
    return max(1, cores)


def _folders(controller: str, membership: Path, groups: Path) -> Iterator[Path]:
    """The folders of the process's group and of those around it, for both versions."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controllers if controllers else groups
        folder = root / path.lstrip("/")
        # In a container the path may be the host's, of which only the root is seen.
        yield from (f for f in (folder, *folder.parents) if f.is_relative_to(root) and f.is_dir())


def _quota(folder: Path) -> tuple[int | None, int | None]:
    """Microseconds of processor time in a period of so many; None for no limit."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return (None if quota == "max" else int(quota)), int(period)
    except (OSError, ValueError):
        quota_us = _number(folder / "cpu.cfs_quota_us")
        limited = quota_us is not None and quota_us > 0
        return quota_us if limited else None, _number(folder / "cpu.cfs_period_us")


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max" is no limit
        return None


def _statistic(file: Path, key: str) -> int:
    try:
        pairs = (line.split() for line in file.read_text().splitlines())
        return int(dict(pair for pair in pairs if len(pair) == 2).get(key, 0))
    except (OSError, ValueError):
        return 0
