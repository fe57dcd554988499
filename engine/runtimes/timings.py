"""Single-op timings that outlive a search: the next one on this machine starts from them."""

import logging
import math
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

log = logging.getLogger(__name__)


class OpTimings:
    """Seconds by key, in a file of lines that processes share.

    A line is `key seconds`, and the last one of a key counts. Lines are appended in one write, and one that is no such
    line is passed over: neither another process nor a full disk can spoil more than what it wrote itself. A file that
    cannot be written costs the next search its head start and nothing else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> float | None:
        """Seconds of an op, None if it was never timed."""
        return self._known.get(key)

    def add(self, times: Mapping[str, float]) -> None:
        """Remember times; one that is not finite says that a kernel was refused, and is not kept."""
        new = {key: seconds for key, seconds in times.items() if 0 < seconds < math.inf}
        if not new:
            return
        self._known.update(new)
        lines = "".join(f"{key} {seconds!r}\n" for key, seconds in new.items())
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                # A line that was cut off before ends here.
                os.write(file, f"\n{lines}".encode())
            finally:
                os.close(file)
        except OSError as error:
            log.warning("timings are not kept: %s", error)

    @cached_property
    def _known(self) -> dict[str, float]:
        try:
            lines = self._path.read_text(errors="replace").splitlines()
        except OSError:
            return {}
        known = {}
        for line in lines:
            key, _, seconds = line.partition(" ")
            try:
                value = float(seconds)
            except ValueError:
                continue
            if 0 < value < math.inf:
                known[key] = value
        return known
