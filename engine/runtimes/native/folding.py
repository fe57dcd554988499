"""What runs once at load: everything that depends on weights alone, such as packing them for a kernel."""

from collections.abc import Callable, Hashable, Mapping

import numpy as np

from engine.compiler.extract import Instruction
from engine.compiler.graph import Node
from engine.compiler.space import RegionSpace
from engine.ops.base import Array
from engine.runtimes.native.driver import Driver

_BLOCK_BYTES = 16 << 20


class Folds:
    """Folded values by what they were made from, in memory that the kernels read fast (huge pages)."""

    def __init__(self, driver: Driver, data: Callable[[Node], Array]) -> None:
        self._driver, self._data = driver, data
        self._values: dict[Hashable, Array] = {}
        self._used: set[Hashable] = set()
        self._block = np.empty(0, np.uint8)  # what is left of it

    def value(
        self, space: RegionSpace, makers: Mapping[int, Instruction], c: int, iteration: int
    ) -> Array:
        """The folded value of a class in an iteration; `makers` are the program's instructions by output."""
        key = self._key(space, makers, c, iteration)
        self._used.add(key)
        if key not in self._values:
            self._values[key] = self._keep(self._compute(space, makers, c, iteration))
        return self._values[key]

    def forget_uses(self) -> None:
        self._used.clear()

    def drop_unused(self) -> None:
        """Drop what nothing has asked for since `forget_uses`."""
        for key in self._values.keys() - self._used:
            del self._values[key]

    def clear(self) -> None:
        self._values.clear()

    @property
    def bytes(self) -> int:
        return sum(v.nbytes for v in self._values.values())

    def _key(
        self, space: RegionSpace, makers: Mapping[int, Instruction], c: int, iteration: int
    ) -> Hashable:
        if c not in makers:
            return space.externals[c][iteration].id
        inputs = tuple(self._key(space, makers, i, iteration) for i in makers[c].inputs)
        return (makers[c].key, inputs)

    def _compute(
        self, space: RegionSpace, makers: Mapping[int, Instruction], c: int, iteration: int
    ) -> Array:
        if c not in makers:
            return self._data(space.externals[c][iteration])
        maker = makers[c]
        inputs = [self._compute(space, makers, i, iteration) for i in maker.inputs]
        return maker.op.meaning(maker.call, {}, *inputs)

    def _keep(self, value: Array) -> Array:
        dense = np.ascontiguousarray(value)
        held = self._room(dense.nbytes).view(dense.dtype).reshape(dense.shape)
        held[...] = dense
        return held

    def _room(self, size: int) -> Array:
        """Bytes of a block that many values share: one of their own would be too small for a huge page."""
        if size > _BLOCK_BYTES // 4:
            return self._driver.array(size)
        if size > len(self._block):
            self._block = self._driver.array(_BLOCK_BYTES)
        end = -(-size // 64) * 64
        room, self._block = self._block[:size], self._block[end:]
        return room
