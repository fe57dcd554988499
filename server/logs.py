"""Logging: readable lines on standard error, and one JSON line a request on standard output."""

import logging
import sys


def configure_logging(level: str) -> None:
    """Sets up the process's loggers; `level` is debug, info, warning or error."""
    readable = logging.StreamHandler(sys.stderr)
    readable.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [readable]
    root.setLevel(logging.WARNING)
    for name in ("egglm", "engine", "models", "server"):
        logging.getLogger(name).setLevel(level.upper())

    requests = logging.getLogger("egglm.request")
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(message)s"))
    requests.handlers[:] = [lines]
    requests.propagate = False
