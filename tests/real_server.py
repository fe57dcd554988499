"""`egglm serve` in a process of its own, as a user starts it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import openai
import psutil

START_S = 240.0
"""Long enough to compile the default model on a busy machine with nothing cached."""
POLL_S = 0.05


class RealServer:
    """A context manager that starts the server and ends every process of it."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = [*arguments, "--port", str(self.port)]
        self._variables = variables
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 closed on exit

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "server", "serve", *self._arguments],
            env=os.environ | self._variables,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        family = self.family()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for process in family:
            if process.is_running():
                process.kill()
        self._output.close()

    @property
    def output(self) -> str:
        """All that it printed so far."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def wait_ready(self, deadline_s: float = START_S) -> None:
        end_s = time.monotonic() + deadline_s
        while not self.is_ready():
            assert self.process.poll() is None, f"the server ended:\n{self.output}"
            assert time.monotonic() < end_s, f"not ready in {deadline_s} s:\n{self.output}"
            time.sleep(POLL_S)

    def is_ready(self) -> bool:
        return self.status("/ready") == 200

    def status(self, path: str) -> int | None:
        """The status of GET `path`, None while nothing answers."""
        try:
            return httpx.get(self.url + path, timeout=5).status_code
        except httpx.TransportError:
            return None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_ended(self, deadline_s: float) -> int:
        """The exit code, once it ends."""
        return self.process.wait(deadline_s)

    def family(self) -> list[psutil.Process]:
        """The server's process and all that came from it."""
        try:
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def engine(self) -> psutil.Process:
        """The engine process: the child with the most memory."""
        return max(self.family()[1:], key=lambda process: process.memory_info().rss)

    def client(self, max_retries: int = 0) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=max_retries)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def metric(self, name: str) -> float:
        """The sum of a family's samples of this name."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{")]
        assert values, f"no metric {name}"
        return sum(values)


def pull_error() -> str | None:
    """Why the default model cannot be had, None if it is in the cache now."""
    pulled = subprocess.run(
        [sys.executable, "-m", "server", "pull"], capture_output=True, text=True, timeout=600
    )
    return None if pulled.returncode == 0 else pulled.stderr.strip().splitlines()[-1]


def small_model() -> Path | None:
    """A model of a megabyte, for faults that do not care what is said; None if not at hand."""
    path = Path(__file__).parents[2] / "shared" / "goldens" / "stories260K.gguf"
    return path if path.is_file() else None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
