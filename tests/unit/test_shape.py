"""Laws of dimensions and views, against Python's integers and NumPy's own reshape, transpose and indexing."""

import re
from collections.abc import Mapping
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.compiler.dtype import DType
from engine.compiler.shape import (
    Dim,
    ShapeError,
    View,
    evaluate,
    exact_quotient,
    loop_nest,
    parse_dim,
    product,
    substitute,
    symbol,
)
from engine.ops.base import Array, Spec
from engine.ops.views import as_shape, as_view, read, shape_text, view_text

VALUES = {"a": 3, "b": 2, "t": 5}
Size = int | Dim


# -- dimensions ------------------------------------------------------------------------------------------------------


@st.composite
def polynomials(draw: st.DrawFn) -> tuple[Size, str]:
    """A dimension made by arithmetic, and the same arithmetic as Python text over the symbols."""
    if draw(st.integers(0, 2)) == 0:
        name = draw(st.sampled_from(sorted(VALUES)))
        return symbol(name), name
    if draw(st.booleans()):
        number = draw(st.integers(-4, 9))
        return number, f"({number})"
    (left, left_text), (right, right_text) = draw(polynomials()), draw(polynomials())
    match draw(st.sampled_from("+-*")):
        case "+":
            return left + right, f"({left_text}+{right_text})"
        case "-":
            return left - right, f"({left_text}-{right_text})"
        case _:
            return left * right, f"({left_text}*{right_text})"


DIMS = polynomials().map(lambda pair: pair[0])
PLACES = st.fixed_dictionaries({name: st.integers(0, 6) for name in VALUES})


@given(polynomials(), PLACES)
def test_a_dimension_has_the_value_of_its_arithmetic(
    pair: tuple[Size, str], at: Mapping[str, int]
) -> None:
    dim, text = pair
    assert evaluate(dim, at) == eval(text, dict(at))


@given(DIMS)
def test_text_round_trip(dim: Size) -> None:
    assert parse_dim(str(dim)) == dim


@given(DIMS, DIMS, DIMS)
def test_equal_polynomials_are_equal_objects(x: Size, y: Size, z: Size) -> None:
    for one, other in (
        (x + y, y + x),
        (x * y, y * x),
        ((x + y) + z, x + (y + z)),
        ((x * y) * z, x * (y * z)),
        (x * (y + z), x * y + x * z),
        (x - x, 0),
        (x + 0, x),
        (x * 1, x),
        (x * 0, 0),
        (0 - (0 - x), x),
    ):
        assert one == other
        assert hash(one) == hash(other)
        assert str(one) == str(other)
        assert isinstance(one, int) == isinstance(other, int)


@given(DIMS, PLACES)
def test_c_text_of_a_dimension_has_its_value(dim: Size, at: Mapping[str, int]) -> None:
    assume(isinstance(dim, Dim))
    assert isinstance(dim, Dim)
    names = {name: f"dims[{n}]" for n, name in enumerate(sorted(VALUES))}
    assert eval(dim.code(names), {"dims": [at[name] for name in sorted(VALUES)]}) == dim.at(at)


@given(DIMS, PLACES)
def test_substitution_of_all_symbols_is_the_value(dim: Size, at: Mapping[str, int]) -> None:
    assert substitute(dim, at) == evaluate(dim, at)
    half = substitute(dim, {"a": at["a"]})
    assert evaluate(half, at) == evaluate(dim, at)
    assert "a" not in (half.symbols if isinstance(half, Dim) else ())


@given(DIMS, st.sampled_from([1, 2, 3, symbol("a"), symbol("a") * 2, symbol("a") * symbol("b")]))
def test_exact_quotient_undoes_a_product(dim: Size, by: Size) -> None:
    assume(dim != 0)
    assert exact_quotient(dim * by, by) == dim


@given(DIMS, DIMS)
def test_an_exact_quotient_is_exact(dim: Size, by: Size) -> None:
    quotient = exact_quotient(dim, by)
    assert quotient is None or quotient * by == dim


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (symbol("r") + 1, "r+1"),
        (symbol("t") * 2 + symbol("r") - 3, "r+2*t+-3"),
        (symbol("t") * symbol("r") * 4, "4*r*t"),
        (symbol("t") - symbol("t"), "0"),
    ],
)
def test_normal_form(dim: Size, text: str) -> None:
    assert str(dim) == text


def test_a_symbol_is_an_identifier() -> None:
    with pytest.raises(ShapeError, match="'2t'"):
        symbol("2t")


# -- views -----------------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 2, 3, 4, 6, symbol("a"), symbol("b"), symbol("a") * 2])


def numbers(size: int) -> tuple[Array, Spec]:
    return np.arange(size, dtype=np.int32), Spec((size,), DType.I32)


def seen(view: View) -> Array:
    """What a view reads of a buffer whose elements are their own places."""
    buffer, spec = numbers(max(4096, evaluate(product(view.shape), VALUES)))
    return read(buffer, spec, view, VALUES)


@st.composite
def moved(draw: st.DrawFn, steps: int = 6) -> tuple[View, Array]:
    """A view after random movements, and NumPy's array after the same movements."""
    shape = tuple(draw(st.lists(SIZES, max_size=3)))
    view = View.contiguous(shape)
    sizes = [evaluate(d, VALUES) for d in shape]
    array: Array = np.arange(prod(sizes), dtype=np.int32).reshape(sizes)
    for _ in range(draw(st.integers(0, steps))):
        view, array = draw(movements(view, array))
    return view, array


@st.composite
def movements(draw: st.DrawFn, view: View, array: Array) -> tuple[View, Array]:
    rank = array.ndim
    axis = draw(st.integers(0, max(rank - 1, 0)))
    name = draw(
        st.sampled_from(
            ["insert", *(["permute", "flip", "slice", "split", "drop", "merge"] if rank else [])]
        )
    )
    match name:
        case "insert":
            size, at = draw(SIZES), draw(st.integers(0, rank))
            repeated = np.repeat(np.expand_dims(array, at), evaluate(size, VALUES), at)
            return view.insert(at, size), repeated
        case "permute":
            order = draw(st.permutations(range(rank)))
            return view.permute(order), array.transpose(order)
        case "flip":
            return view.flip(axis), np.flip(array, axis)
        case "slice":
            assume(len(view.axes[axis]) < 2)
            start = draw(st.integers(0, array.shape[axis]))
            stop = draw(st.integers(start, array.shape[axis]))
            kept = (*(slice(None) for _ in range(axis)), slice(start, stop))
            return view.slice(axis, start, stop), array[kept]
        case "split":
            size = array.shape[axis]
            inner = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if size % n == 0]))
            try:
                parts = view.split(axis, inner)
            except ShapeError:
                # Only what one stride walks can be cut anywhere, and a symbolic size only where it is a product.
                assert len(view.axes[axis]) > 1 or isinstance(view.shape[axis], Dim)
                return view, array
            cut = (*array.shape[:axis], size // inner, inner, *array.shape[axis + 1 :])
            return parts, array.reshape(cut)
        case "drop":
            if view.shape[axis] != 1:
                with pytest.raises(ShapeError, match="squeeze"):
                    view.drop(axis)
                return view, array
            return view.drop(axis), array.squeeze(axis)
        case _:
            if axis == rank - 1:
                with pytest.raises(ShapeError, match="merge"):
                    view.merge(axis)
                return view, array
            joined = array.shape[axis] * array.shape[axis + 1]
            return view.merge(axis), array.reshape(
                *array.shape[:axis], joined, *array.shape[axis + 2 :]
            )


@settings(max_examples=60)
@given(moved())
def test_movements_are_numpy_s(pair: tuple[View, Array]) -> None:
    view, array = pair
    assert tuple(evaluate(d, VALUES) for d in view.shape) == array.shape
    np.testing.assert_array_equal(seen(view), array)


@settings(max_examples=60)
@given(moved())
def test_a_contiguous_view_reads_the_buffer_as_it_lies(pair: tuple[View, Array]) -> None:
    view, array = pair
    if view.is_contiguous:
        np.testing.assert_array_equal(array.reshape(-1), np.arange(array.size))


@settings(max_examples=60)
@given(moved(), st.data())
def test_merge_undoes_split(pair: tuple[View, Array], data: st.DataObject) -> None:
    view, array = pair
    assume(view.axes and 0 not in array.shape)
    axis = data.draw(st.integers(0, len(view.axes) - 1))
    inner = data.draw(SIZES)
    try:
        parts = view.split(axis, inner)
    except ShapeError:
        return
    assert parts.shape[axis + 1] == inner
    assert product(parts.shape[axis : axis + 2]) == view.shape[axis]
    assert parts.merge(axis) == view


@settings(max_examples=60)
@given(moved(), st.data())
def test_split_undoes_merge(pair: tuple[View, Array], data: st.DataObject) -> None:
    view, array = pair
    assume(len(view.axes) > 1 and 0 not in array.shape)
    axis = data.draw(st.integers(0, len(view.axes) - 2))
    parts = view.merge(axis).split(axis, view.shape[axis + 1])
    assert parts.shape == view.shape
    np.testing.assert_array_equal(seen(parts), array)


@settings(max_examples=60)
@given(moved(), st.data())
def test_flip_and_permute_undo_themselves(pair: tuple[View, Array], data: st.DataObject) -> None:
    view, _ = pair
    order = data.draw(st.permutations(range(len(view.axes))))
    assert view.permute(order).permute([int(i) for i in np.argsort(order)]) == view
    for axis in range(len(view.axes)):
        assert view.flip(axis).flip(axis) == view


def raw(text: str) -> tuple[tuple[str, ...], str]:
    """What the extraction reads out of egglog's text of a list."""
    return tuple(re.findall(r'Dim "([^"]*)"', text)), re.findall(r'Nil "([^"]*)"', text)[0]


@settings(max_examples=60)
@given(moved())
def test_view_text_round_trip(pair: tuple[View, Array]) -> None:
    view, _ = pair
    assert as_shape(raw(shape_text(view.shape))) == view.shape
    assert as_view(raw(view_text(view)), view.shape) == view


@settings(max_examples=60)
@given(moved(), st.data())
def test_equal_texts_are_equal_views(pair: tuple[View, Array], data: st.DataObject) -> None:
    view, _ = pair
    other, _ = data.draw(movements(view, seen(view)))
    if other.shape == view.shape and view_text(other) == view_text(view):
        np.testing.assert_array_equal(seen(other), seen(view))


@settings(max_examples=60)
@given(moved())
def test_a_loop_nest_walks_views_in_row_major_order(pair: tuple[View, Array]) -> None:
    view, array = pair
    assume(0 not in array.shape)
    views = [View.contiguous(view.shape), view]
    rows = loop_nest(views)
    sizes = [evaluate(size, VALUES) for size, _ in rows]
    for n, walked in enumerate(views):
        at = np.full(sizes, evaluate(walked.offset, VALUES))
        for axis, (_, strides) in enumerate(rows):
            steps = np.arange(sizes[axis]) * evaluate(strides[n], VALUES)
            at = at + np.expand_dims(steps, [i for i in range(len(sizes)) if i != axis])
        np.testing.assert_array_equal(at.reshape(-1), seen(walked).reshape(-1))


def test_views_cut_at_places_that_no_loops_share_have_one_loop() -> None:
    two_by_three = View.contiguous((3, 2)).permute((1, 0)).merge(0)
    three_by_two = View.contiguous((2, 3)).permute((1, 0)).merge(0)
    [(size, strides)] = loop_nest([two_by_three, View.contiguous((6,)), three_by_two])
    assert size == 6
    assert strides == (((2, 1), (3, 2)), 1, ((3, 1), (2, 3)))


def test_views_of_different_sizes_have_no_loop() -> None:
    with pytest.raises(ShapeError, match="different sizes"):
        loop_nest([View.contiguous((6,)), View.contiguous((2,))])


def test_packed_nibbles_are_read_low_first() -> None:
    packed = np.array([0x21, 0x43], np.uint8)
    found = read(packed, Spec((4,), DType.U4), View.contiguous((4,)).flip(0), {})
    assert found.tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda v: v.permute((0, 0)), "no order of 2 axes"),
        (lambda v: v.insert(3, 2), "no place for axis 3"),
        (lambda v: v.drop(0), "not of size 1"),
        (lambda v: v.merge(1), "no axes 1 and 2"),
        (lambda v: v.split(1, 4), "4 does not divide axis 1"),
        (lambda v: v.slice(0, 1, 5), "1..5 is not inside axis 0"),
        (lambda v: v.permute((1, 0)).merge(0).slice(0, 0, 2), "merged from strided axes"),
    ],
)
def test_impossible_movements_say_what_is_wrong(wrong: object, words: str) -> None:
    assert callable(wrong)
    with pytest.raises(ShapeError, match=re.escape(words)):
        wrong(View.contiguous((4, 6)))
