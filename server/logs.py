"""Logging: readable lines on standard error, and one JSON line a request on standard output."""

import logging
import sys

CHATTY_LIBRARIES = ("asyncio", "filelock", "httpcore", "httpx", "huggingface_hub", "uvicorn")


def configure_logging(level: str) -> None:
    """Sets up the process's loggers; `level` is debug, info, warning or error."""
    readable = logging.StreamHandler(sys.stderr)
    readable.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [readable]
    root.setLevel(level.upper())
    for name in CHATTY_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)

    requests = logging.getLogger("egglm.request")
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(message)s"))
    requests.handlers[:] = [lines]
    requests.propagate = False
    requests.setLevel(logging.INFO)
