"""A server on a real socket over a scripted engine, and how tests wait."""

import asyncio
import threading
import time
from collections.abc import Callable

import httpx
import openai
import uvicorn
from scripted import END_OF_TURN, EOS, ScriptedEngine

from models.tokenizer import Tokenizer
from server.app import create_app
from server.generation.defaults import SamplingDefaults
from server.http import HttpServer, listen
from server.metrics import Metrics
from server.settings import Settings
from server.state import ServedModel, ServerState

DEADLINE_S = 10.0


class ServedScript:
    """A server on a real socket, in a thread of its own, over a scripted engine."""

    def __init__(self, tokenizer: Tokenizer, settings: Settings) -> None:
        self.engine = ScriptedEngine()
        self.tokenizer = tokenizer
        self.state = ServerState(settings, Metrics("tiny"))
        self.state.metrics.watch(lambda: self.engine.stats)
        self.state.model = ServedModel(
            ["tiny", "alias"], tokenizer, self.engine, (EOS, END_OF_TURN), SamplingDefaults()
        )
        self._listener = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(self.state), log_config=None, access_log=False, lifespan="off"
        )
        self.server = HttpServer(config)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run_until_complete(self.server.serve(sockets=[self._listener]))
        self.loop.close()

    def close(self) -> None:
        self.engine.gate.set()
        self.server.should_exit = True
        self.server.force_exit = True
        self.join()
        self._listener.close()

    def join(self) -> None:
        """Waits for the end of the server's thread."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def client(self, **options: object) -> openai.OpenAI:
        options = {"api_key": "none", "max_retries": 0, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S)

    def metric(self, sample: str) -> float:
        """The value of a sample, by its full name with labels."""
        for line in self.http().get("/metrics").text.splitlines():
            if line.startswith(sample + " "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no sample {sample}")


ServeScript = Callable[..., ServedScript]


def eventually(holds: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Polls until `holds()`; fails the test after `deadline_s`."""
    end_s = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end_s, "the condition did not come to hold in time"
        time.sleep(0.01)
