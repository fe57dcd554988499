"""Every block format gives, bit for bit, what ggml's own Python package makes of the same bytes."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ops.base import Array
from models.gguf_quants import FORMATS, QuantFormat, convert

ROWS, BLOCKS = 6, 4
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where a block has its f16 numbers; the others have one, at the start."""


def random_blocks(form: QuantFormat, seed: int) -> Array:
    """u8 [ROWS * BLOCKS, size]: any codes and sub-scales, and f16 numbers of all magnitudes."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (ROWS * BLOCKS, form.size), np.uint8)
    for at in HALVES.get(form.name, (0,)):
        # The exponents stop where 8 times the number still is an f16.
        halves = rng.integers(0, 26 << 10, len(blocks), np.uint16)
        halves |= rng.integers(0, 2, len(blocks), np.uint16) << 15
        blocks[:, at : at + 2] = halves.astype("<u2")[:, None].view(np.uint8)
    return blocks


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_values_are_those_of_the_gguf_package(kind: int, seed: int) -> None:
    form = FORMATS[kind]
    blocks = random_blocks(form, seed)
    tensor = convert(form, blocks, ROWS)
    values = tensor.dequantize()
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(kind))
    assert values.dtype == np.float32
    assert tensor.shape == values.shape == (ROWS, BLOCKS * form.block)
    np.testing.assert_array_equal(values.reshape(expected.shape), expected)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
def test_the_parts_are_what_the_format_promises(kind: int) -> None:
    form = FORMATS[kind]
    assert form.name == gguf.GGMLQuantizationType(kind).name
    assert (form.block, form.size) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    tensor = convert(form, random_blocks(form, 0), ROWS)
    groups = (ROWS, BLOCKS * form.block // form.group)
    assert (tensor.bits, tensor.group) == (form.bits, form.group)
    assert tensor.codes.dtype == (np.uint8 if form.bits == 4 else np.int8)
    assert tensor.scale.shape == groups
    assert tensor.scale.dtype == form.scale
    assert (tensor.minimum is not None) == form.has_minimum
    if tensor.minimum is not None:
        assert (tensor.minimum.shape, tensor.minimum.dtype) == (groups, tensor.scale.dtype)
    for part in (tensor.codes, tensor.scale):
        assert part.flags.c_contiguous


def test_rows_in_another_order() -> None:
    form = FORMATS[gguf.GGMLQuantizationType.Q4_1]
    tensor = convert(form, random_blocks(form, 1), ROWS)
    order = np.array([3, 1, 5, 0, 2, 4])
    np.testing.assert_array_equal(tensor.rows(order).dequantize(), tensor.dequantize()[order])
