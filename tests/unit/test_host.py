"""Limits of control groups, from files as the kernel writes them."""

from pathlib import Path

import pytest

from engine.host import available_memory, usable_cores

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_memory_of_version_2_is_the_tightest_group_and_cache_counts_as_free(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "self": "0::/outer/inner\n",
            "groups/outer/memory.max": f"{64 * MIB}\n",
            "groups/outer/memory.current": f"{50 * MIB}\n",
            "groups/outer/memory.stat": f"anon 1\ninactive_file {8 * MIB}\n",
            "groups/outer/inner/memory.max": "max\n",
            "groups/outer/inner/memory.current": f"{50 * MIB}\n",
        },
    )
    assert available_memory(tmp_path / "self", tmp_path / "groups") == 22 * MIB


def test_memory_of_version_1_in_a_container_that_sees_only_its_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "self": "4:memory:/docker/0123\n3:cpuset:/\n",
            "groups/memory/memory.limit_in_bytes": f"{10 * MIB}\n",
            "groups/memory/memory.usage_in_bytes": f"{12 * MIB}\n",
        },
    )
    assert available_memory(tmp_path / "self", tmp_path / "groups") == 0


def test_memory_without_limits_is_the_systems(tmp_path: Path) -> None:
    write(tmp_path, {"self": "0::/\n", "groups/memory.max": "max\n", "groups/memory.current": "1"})
    free = available_memory(tmp_path / "none", tmp_path)
    assert available_memory(tmp_path / "self", tmp_path / "groups") == pytest.approx(free, rel=0.1)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"self": "0::/\n", "groups/cpu.max": "250000 100000\n"}, 2),
        ({"self": "0::/\n", "groups/cpu.max": "50000 100000\n"}, 1),
        ({"self": "0::/\n", "groups/cpu.max": "max 100000\n"}, 16),
        (
            {
                "self": "2:cpu,cpuacct:/a\n",
                "groups/cpu,cpuacct/a/cpu.cfs_quota_us": "300000\n",
                "groups/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "self": "1:cpu:/\n",
                "groups/cpu/cpu.cfs_quota_us": "-1\n",
                "groups/cpu/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
        ({}, 16),
    ],
)
def test_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr("engine.host.psutil.cpu_count", lambda logical: 16)
    monkeypatch.setattr("engine.host.os.sched_getaffinity", lambda pid: set(range(64)))
    write(tmp_path, files)
    assert usable_cores(tmp_path / "self", tmp_path / "groups") == cores


def test_cores_that_the_process_is_bound_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.host.psutil.cpu_count", lambda logical: 16)
    monkeypatch.setattr("engine.host.os.sched_getaffinity", lambda pid: {3, 5})
    assert usable_cores(tmp_path / "self", tmp_path / "groups") == 2
