"""The tensors of a safetensors directory, with quantised matrices under the name that they have in a float model."""

from pathlib import Path

from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from models.quantization_config import read_scheme
from models.quantized_matrix import Matrix
from models.safetensors_file import SafetensorsFiles
from models.tensor_info import TensorInfo


class QuantizedFiles:
    """As `SafetensorsFiles`, in whatever scheme the directory's config names. Raises `ModelFileError`."""

    def __init__(self, directory: Path) -> None:
        self._files = SafetensorsFiles(directory)
        self._scheme = read_scheme(directory)
        marks = () if self._scheme is None else self._scheme.marks
        split = {name: name.rpartition(".") for name in self._files.names()}
        stems = dict.fromkeys(stem for stem, _, last in split.values() if last in marks)
        held = frozenset(split)
        self._matrices = {f"{stem}.weight": Matrix(self._files, held, stem) for stem in stems}
        biases = [name for name, (_, _, last) in split.items() if last == "bias"]
        plain = [name for name, (stem, _, _) in split.items() if stem not in stems]
        self._names = list(dict.fromkeys([*plain, *biases, *self._matrices]))
        self.size_bytes = sum(
            self.info(name).size_bytes if name in self._matrices else self._files.bytes_of(name)
            for name in self._names
        )

    def names(self) -> list[str]:
        return self._names

    def info(self, name: str) -> TensorInfo:
        if name in self._matrices:
            assert self._scheme is not None
            return self._scheme.info(self._matrices[name])
        return TensorInfo(self._files.shape(name), self._files.weight_dtype(name))

    def tensor(self, name: str) -> Array | QuantizedTensor:
        if name in self._matrices:
            assert self._scheme is not None
            return self._scheme.tensor(self._matrices[name])
        return self._files.tensor(name)

    def close(self) -> None:
        self._files.close()
