"""Which scheme a directory's quantised matrices are in, by its `quantization_config`."""

from pathlib import Path

from models.fields import Fields
from models.integer_schemes import Awq, Gptq
from models.json_files import read_object
from models.quantized_matrix import Scheme
from models.scaled_scheme import Scaled

_METHODS = ("awq", "gptq", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt")
_COMPRESSED = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_GPTQ_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}


def read_scheme(directory: Path) -> Scheme | None:
    """None for a model that is not quantised. Raises `ModelFileError` for a method that is not known, by name."""
    path = directory / "config.json"
    fields = Fields(path, read_object(path)).inside("quantization_config")
    if not fields.keys and (directory / "hf_quant_config.json").exists():
        return _modelopt(directory / "hf_quant_config.json")
    if not fields.keys:
        return None
    method = fields.value("quant_method")
    if method == "awq":
        return _awq(fields)
    if method == "gptq":
        return _gptq(fields)
    if method == "compressed-tensors":
        return _compressed(fields)
    if method in ("fp8", "fbgemm_fp8"):
        return Scaled(_block(fields, "weight_block_size"))
    if method == "modelopt":
        _only(fields, "quant_algo", "FP8")
        return Scaled()
    raise fields.unsupported(f"quantization method {method!r}", *_METHODS)


def _awq(fields: Fields) -> Scheme:
    version = fields.value("version", "gemm")
    if (
        fields.size("bits", 4) != 4
        or str(version).lower() != "gemm"
        or not fields.value("zero_point", True)
    ):
        raise fields.unsupported("this form of awq", "4 bits in version gemm with zero points")
    return Awq()


def _gptq(fields: Fields) -> Scheme:
    bits, form = fields.size("bits"), fields.value("checkpoint_format", "gptq")
    if bits not in (4, 8):
        raise fields.unsupported(f"gptq in {bits} bits", "4", "8")
    if form not in _GPTQ_ZERO_OFFSETS:
        raise fields.unsupported(f"checkpoint_format {form!r}", *_GPTQ_ZERO_OFFSETS)
    if any(not key.startswith("-:") for key in fields.inside("dynamic").keys):
        raise fields.unsupported("gptq with other bits for some matrices (dynamic)")
    return Gptq(bits, _GPTQ_ZERO_OFFSETS[form])


def _compressed(fields: Fields) -> Scheme:
    _only(fields, "format", *_COMPRESSED)
    for key in ("sparsity_config", "transform_config"):
        if fields.inside(key).keys and fields.inside(key).value("format") != "dense":
            raise fields.unsupported(f"compressed-tensors with {key}")
    groups = fields.inside("config_groups")
    blocks = {
        _block(groups.inside(name).inside("weights"), "block_structure") for name in groups.keys
    }
    if len(blocks) > 1:
        raise fields.unsupported("compressed-tensors with blocks of several sizes")
    return Scaled(*blocks)


def _modelopt(path: Path) -> Scheme:
    _only(Fields(path, read_object(path)).inside("quantization"), "quant_algo", "FP8")
    return Scaled()


def _only(fields: Fields, key: str, *known: str) -> None:
    if fields.value(key) not in known:
        raise fields.unsupported(f"quantization with {key} {fields.value(key)!r}", *known)


def _block(fields: Fields, key: str) -> tuple[int, int] | None:
    """Rows and columns, where the file names them."""
    if fields.value(key) is None:
        return None
    down, across = fields.constants(key, 2)
    if not (down.is_integer() and across.is_integer()):
        raise fields.wrong(key, "two whole numbers")
    return int(down), int(across)
