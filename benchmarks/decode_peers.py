"""Greedy decoding by transformers or llama.cpp, in a process of its own that takes orders on stdin.

Run by `cpu_decode.py` with the Python that has them: `decode_peers.py PROGRAM MODEL.gguf THREADS`.
Its first line on stdout lists the engines; after that each line `{"engine", "prompts", "steps"}` is
answered by `{"seconds"}`. Nothing of EggLM is imported.
"""

import copy
import json
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol


class Peer(Protocol):
    """One engine: decodes all prompts together and says how long the steps after prefill took."""

    weights_bytes: int

    def seconds(self, prompts: list[list[int]], steps: int) -> float: ...


class Transformers:
    """An eager model with its own dynamic cache; argmax in torch."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.weights_bytes = sum(p.numel() * p.element_size() for p in model.parameters())

    def seconds(self, prompts: list[list[int]], steps: int) -> float:
        import torch

        with torch.inference_mode():
            out = self._model(input_ids=torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            start_s = perf_counter()
            for _ in range(steps):
                out = self._model(
                    input_ids=out.logits[:, -1].argmax(-1, keepdim=True),
                    past_key_values=out.past_key_values,
                    use_cache=True,
                )
            return perf_counter() - start_s


def load_transformers(path: Path, threads: int) -> dict[str, Peer]:
    """The same weights, dequantised, in float32 and in bfloat16."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    brief = copy.deepcopy(model).to(torch.bfloat16)
    name = f"transformers {version('transformers')}"
    return {f"{name} f32": Transformers(model), f"{name} bf16": Transformers(brief)}


class LlamaCpp:
    """llama.cpp's C interface; one context for each number of streams, argmax in NumPy."""

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        self._threads = threads
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self.weights_bytes = int(llama_cpp.llama_model_size(self._model))
        self._contexts: dict[tuple[int, int], Any] = {}

    def seconds(self, prompts: list[list[int]], steps: int) -> float:
        lib = self._lib
        streams, length = len(prompts), len(prompts[0])
        context = self._context(streams, length + steps)
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        batch = lib.llama_batch_init(max(length, streams), 0, 1)
        tokens = []
        for stream, prompt in enumerate(prompts):
            rows = [(t, at, stream, at == length - 1) for at, t in enumerate(prompt)]
            tokens += self._decode(context, batch, rows)
        start_s = perf_counter()
        for place in range(length, length + steps):
            rows = [(token, place, stream, True) for stream, token in enumerate(tokens)]
            tokens = self._decode(context, batch, rows)
        elapsed_s = perf_counter() - start_s
        lib.llama_batch_free(batch)
        return elapsed_s

    def _context(self, streams: int, length: int) -> Any:
        if (streams, length) not in self._contexts:
            params = self._lib.llama_context_default_params()
            params.n_ctx = streams * -(-length // 256) * 256
            params.n_seq_max = streams
            params.n_threads = params.n_threads_batch = self._threads
            self._contexts[streams, length] = self._lib.llama_init_from_model(self._model, params)
        return self._contexts[streams, length]

    def _decode(
        self, context: Any, batch: Any, rows: list[tuple[int, int, int, bool]]
    ) -> list[int]:
        """Runs (token, position, stream, wanted) rows; the best next token of each wanted one."""
        import numpy as np

        batch.n_tokens = len(rows)
        for at, (token, place, stream, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at] = token, place
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, stream
            batch.logits[at] = wanted
        if self._lib.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        best = []
        for at, (_, _, _, wanted) in enumerate(rows):
            if wanted:
                logits = self._lib.llama_get_logits_ith(context, at)
                best.append(int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax()))
        return best


def load_llama_cpp(path: Path, threads: int) -> dict[str, Peer]:
    """The file as it is, through llama-cpp-python's bindings."""
    return {f"llama.cpp (python {version('llama_cpp_python')})": LlamaCpp(path, threads)}


def main() -> None:
    program, path, threads = sys.argv[1:]
    load = {"transformers": load_transformers, "llama.cpp": load_llama_cpp}[program]
    peers = load(Path(path), int(threads))
    print(json.dumps({name: peer.weights_bytes for name, peer in peers.items()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        seconds = peers[order["engine"]].seconds(order["prompts"], order["steps"])
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
