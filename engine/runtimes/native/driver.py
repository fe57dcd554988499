"""`driver.c` through ctypes: the thread pool, the program walk, and memory in huge pages."""

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from engine.ops.base import Array
from engine.runtimes.native.linking import DriverProgram
from engine.runtimes.native.prelude import PRELUDE
from engine.runtimes.toolchain import Toolchain

_DRIVER = Path(__file__).with_name("driver.c")


class Driver:
    """A pool of `threads` workers (the caller is one of them) that runs programs."""

    def __init__(self, toolchain: Toolchain, directory: Path, threads: int) -> None:
        source = PRELUDE + _DRIVER.read_text()
        library = ctypes.CDLL(str(toolchain.library(source, directory)))
        library.egg_pool_new.restype = ctypes.c_void_p
        library.egg_pool_new.argtypes = [ctypes.c_int]
        library.egg_pool_free.argtypes = [ctypes.c_void_p]
        library.egg_alloc.restype = ctypes.c_void_p
        library.egg_alloc.argtypes = [ctypes.c_size_t]
        library.egg_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.egg_flush_cache.argtypes = [ctypes.c_void_p]
        self._run = library.egg_run
        self._run.restype = None
        self._run.argtypes = [ctypes.c_void_p, ctypes.POINTER(DriverProgram), ctypes.c_void_p]
        self._run_timed = library.egg_run_timed
        self._run_timed.restype = None
        self._run_timed.argtypes = [*self._run.argtypes, ctypes.c_void_p]
        self._library = library
        self._pool = library.egg_pool_new(threads)
        self.threads = threads
        self._nothing = DriverProgram()
        weakref.finalize(self, library.egg_pool_free, self._pool)

    def array(self, size: int) -> Array:
        """Zeroed bytes in huge pages, freed with the last array over them. Raises `MemoryError`."""
        address = self._library.egg_alloc(max(size, 1))
        if not address:
            raise MemoryError(f"cannot allocate {size} bytes")
        memory: Any = (ctypes.c_uint8 * size).from_address(address)
        weakref.finalize(memory, self._library.egg_free, address, max(size, 1))
        return np.frombuffer(memory, np.uint8)

    def run(self, program: DriverProgram, dims: Array) -> None:
        """One step; `dims` are the symbols' values as int64."""
        self._run(self._pool, ctypes.byref(program), dims.ctypes.data)

    def seconds(self, program: DriverProgram, dims: Array) -> float:
        """Wall time of one step, with the workers awake before it."""
        self.run(self._nothing, dims)
        start = perf_counter()
        self.run(program, dims)
        return perf_counter() - start

    def op_seconds(self, program: DriverProgram, dims: Array, ops: int) -> Array:
        """Time that each op takes in one step, with a barrier after each, summed over iterations: f64 [ops]."""
        seconds = np.zeros(max(ops, 1))
        self._run_timed(self._pool, ctypes.byref(program), dims.ctypes.data, seconds.ctypes.data)
        return seconds[:ops]

    def flush_cache(self) -> None:
        """Evict what the caches hold, so that the next run reads memory."""
        self._library.egg_flush_cache(self._pool)


def bytes_at(address: int, size: int) -> Array:
    """Memory that something else owns, as u8 [size]."""
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memory, np.uint8)


def dims_array(symbols: Sequence[str], dims: Mapping[str, int]) -> Array:
    return np.array([dims[s] for s in symbols] or [0], np.int64)


def address_of(array: Array) -> int:
    return int(array.ctypes.data)
