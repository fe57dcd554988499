"""Alike layers become one region that runs many times; what it computes is what the layers one by one do."""

from collections.abc import Callable

import numpy as np
import pytest
from candidates import native, outputs_of, random_programs, space_of
from tiny_llama import TinyLlama

from engine.compiler import nn, regions
from engine.compiler.graph import Graph
from engine.compiler.regions import partition
from engine.compiler.shape import View, evaluate
from engine.compiler.tensor import Tensor
from engine.ops.base import Array
from engine.runtimes.base import Runtime
from engine.runtimes.reference import ReferenceRuntime

Runtimes = Callable[[], Runtime]


@pytest.fixture(params=["reference", "native"])
def runtime(request: pytest.FixtureRequest) -> Runtimes:
    return ReferenceRuntime if request.param == "reference" else native


def layer(x: Tensor, width: int = 8, eps: float = 1e-5) -> Tensor:
    """A layer with weights of its own, `width` columns wide inside."""
    g, k = x.graph, nn.width(x)
    h = nn.rms_norm(x, g.tensor((k,)).persist(), eps)
    h = nn.linear(h, g.tensor((width, k)).persist()).silu()
    return x + nn.linear(h, g.tensor((k, width)).persist())


def stack(count: int) -> Graph:
    g = Graph()
    x = g.tensor(("t", 16)).sin()
    for _ in range(count):
        x = layer(x)
    x.sin().output()
    return g


def iterations(graph: Graph) -> list[int]:
    return [region.iterations for region in partition(graph)]


def rolled(graph: Graph) -> int:
    """The most iterations that a region of the graph has."""
    return max(iterations(graph))


@pytest.mark.parametrize("count", [2, 3, 7, 30])
def test_alike_layers_are_one_region(count: int) -> None:
    found = partition(stack(count))
    assert rolled(stack(count)) == count
    whole = [region for region in found if region.iterations == count]
    assert len(whole) == 1
    assert len(whole[0].carried) == 1
    blocks = [n for region in found for block in region.blocks for n in block]
    assert len(blocks) == len(set(blocks))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_regions_hold_every_live_node_once_and_in_order(count: int) -> None:
    g = stack(count)
    live = [n for n in g.nodes if n.op != "Input"]
    g.tensor(("t", 3)).sin()  # which nothing needs
    nodes = [n for region in partition(g) for block in region.blocks for n in block]
    assert nodes == live
    made: set[object] = set(g.inputs)
    for node in nodes:
        assert all(o.node in made for o in node.inputs)
        made.add(node)


def test_the_layers_of_a_llama_are_one_region() -> None:
    small, large = TinyLlama(2), TinyLlama(6)
    assert rolled(small.graph) == 2
    assert rolled(large.graph) == 6
    assert len(partition(small.graph)) == len(partition(large.graph))


def unlike_widths(g: Graph) -> Tensor:
    return layer(layer(g.tensor(("t", 16)), 8), 9)


def unlike_constants(g: Graph) -> Tensor:
    return layer(layer(g.tensor(("t", 16)), eps=1e-5), eps=1e-6)


def read_much_later(g: Graph) -> Tensor:
    """The first of three layers feeds the end too."""
    first = layer(g.tensor(("t", 16)))
    return layer(layer(first)) + first


def test_unlike_layers_are_not_rolled() -> None:
    for build in (unlike_widths, unlike_constants):
        g = Graph()
        build(g).output()
        whole = len([n for n in g.nodes if n.op != "Input"]) // 2
        assert all(len(r.nodes) < whole - 2 for r in partition(g) if r.iterations > 1), build


def test_a_layer_whose_value_is_read_later_is_left_out() -> None:
    g = Graph()
    read_much_later(g).output()
    # Only blocks next to each other see each other's values: two layers can be rolled, not the three.
    assert rolled(g) <= 2


def fill(graph: Graph) -> dict[Tensor, Array]:
    rng, found = np.random.default_rng(0), {}
    for node in graph.inputs:
        shape = [evaluate(d, {"t": 5}) for d in node.shape]
        tensor = Tensor(graph, node, View.contiguous(node.shape))
        found[tensor] = rng.standard_normal(shape, np.float32)
    return found


def every_layer_is_an_output(g: Graph) -> None:
    x = g.tensor(("t", 16))
    for _ in range(4):
        x = layer(x).output()


def one_layer_is_an_output(g: Graph) -> None:
    x = g.tensor(("t", 16))
    for n in range(4):
        x = layer(x)
        if n == 1:
            x.output()
    x.output()


def layers_share_a_weight(g: Graph) -> None:
    x, shared = g.tensor(("t", 16)), g.tensor((16, 16)).persist()
    for _ in range(3):
        x = nn.linear(layer(x), shared)
    x.output()


def layers_read_the_first_input(g: Graph) -> None:
    x = first = g.tensor(("t", 16))
    for _ in range(3):
        x = layer(x) + first
    x.output()


def two_values_are_carried(g: Graph) -> None:
    x, y = g.tensor(("t", 16)), g.tensor(("t", 16))
    for _ in range(3):
        x, y = layer(x) + y, y * 0.5 + x
    (x + y).output()


def later_layers_read_an_early_one(g: Graph) -> None:
    read_much_later(g).output()


def two_stacks(g: Graph) -> None:
    x = g.tensor(("t", 16))
    for _ in range(3):
        x = layer(x, 8)
    for _ in range(3):
        x = layer(x, 5)
    x.output()


def a_short_chain(g: Graph) -> None:
    x = y = g.tensor(("t", 16))
    for _ in range(9):
        y = (y * 0.5 + x).sin()
    y.output()


def tables_before_the_layers(g: Graph) -> None:
    """Two values that are made alike; the layers read the second, and what follows them reads the first."""
    x, tables = g.tensor(("t", 16)), []
    for _ in range(2):
        angle = x * g.tensor((16,)).persist().expand(0, x.shape[0])
        tables.append((angle.sin() + 1.0).sin() * angle.cos())
    y = x.sin()
    for _ in range(3):
        y = layer(y * tables[1])
    (y * tables[0]).output()


GRAPHS = [
    tables_before_the_layers,
    every_layer_is_an_output,
    one_layer_is_an_output,
    layers_share_a_weight,
    layers_read_the_first_input,
    two_values_are_carried,
    later_layers_read_an_early_one,
    two_stacks,
    a_short_chain,
]


def results(graph: Graph, runtime: Runtime, data: dict[Tensor, Array]) -> list[list[Array]]:
    programs = random_programs(space_of(graph, runtime), 0, 2, {"t": 5})
    return [found for _, found in outputs_of(graph, runtime, programs, data, {"t": 5})]


@pytest.mark.parametrize("build", GRAPHS)
def test_rolled_is_unrolled(
    build: Callable[[Graph], None], runtime: Runtimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = Graph()
    build(g)
    data = fill(g)
    found = results(g, runtime(), data)
    with monkeypatch.context() as patch:
        patch.setattr(regions, "_longest_repetition", lambda *_: None)
        assert iterations(g) == [1]
        want = results(g, ReferenceRuntime(), data)[0]
    assert found
    for outputs in found:
        for a, b in zip(outputs, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_states_of_rolled_layers_are_their_own(layers: int, runtime: Runtimes) -> None:
    llama = TinyLlama(layers)
    data, dims = llama.batch()
    made = runtime()
    [program] = random_programs(space_of(llama.graph, made), 0, 1, dims)
    [(_, [logits, *pools])] = outputs_of(llama.graph, made, [program], data, dims)
    np.testing.assert_allclose(logits, llama.expected(), rtol=0, atol=4e-3)
    assert len(pools) == 2 * layers
    written = sorted(data[llama.slots])
    for at, pool in enumerate(pools):
        assert np.count_nonzero(pool.any(1)) == len(written)
        assert pool[written].any(1).all()
        assert all(not np.array_equal(pool, other) for other in pools[:at])
