"""The binding to egglog, and the size of what the rules make of a layer."""

from time import process_time

import pytest
from tiny_llama import TinyLlama

from engine.compiler import regions
from engine.compiler.dtype import DType
from engine.compiler.egraph import EGraph, EGraphError
from engine.compiler.regions import partition
from engine.compiler.space import explore
from engine.ops.base import Fold, Kernel
from engine.ops.registry import RULESETS, all_ops, native_ops, program_text


def test_a_saturated_graph_is_read_back() -> None:
    egraph = EGraph()
    egraph.run("(datatype M (Num i64) (Add M M))\n(rewrite (Add a b) (Add b a))")
    egraph.run("(let x (Add (Num 1) (Num 2)))\n(run-schedule (saturate (run)))")
    nodes = egraph.serialize(["x"])["nodes"]
    sums = [n for n in nodes.values() if n["op"] == "Add"]
    assert len(sums) == 2
    assert sums[0]["eclass"] == sums[1]["eclass"]
    assert sums[0]["children"] == sums[1]["children"][::-1]


@pytest.mark.parametrize(
    "wrong", ["(let x", "(rewrite (Nothing a) a)", "(run-schedule (run nowhere))"]
)
def test_a_wrong_program_is_refused_in_egglogs_words(wrong: str) -> None:
    with pytest.raises(EGraphError, match=r"\w"):
        EGraph().run(wrong)


def test_two_graphs_share_nothing() -> None:
    one, other = EGraph(), EGraph()
    one.run("(datatype M (Num i64))")
    with pytest.raises(EGraphError):
        other.run("(let x (Num 1))")


def test_the_rules_load_and_every_op_has_a_constructor() -> None:
    egraph = EGraph()
    egraph.run(program_text())
    for name in RULESETS:
        egraph.run(f"(run-schedule (saturate (run {name})))")
    for op in all_ops().values():
        assert f"(constructor {op.name} (" in program_text()
    assert {name for name, op in all_ops().items() if isinstance(op, Kernel | Fold)} == native_ops()


def test_every_kernel_is_made_by_some_rule() -> None:
    rules = [line for line in program_text().splitlines() if line.startswith(("(rule", "(rewrite"))]
    for name in native_ops():
        assert any(f"({name} " in rule for rule in rules), name


@pytest.mark.parametrize("held", [DType.F32, DType.BF16, DType.U4, DType.I8], ids=lambda d: d.value)
def test_a_llama_layer_saturates_in_half_a_second(held: DType) -> None:
    graph = TinyLlama(2, held).graph
    start = process_time()
    spaces = [explore(region, graph, native_ops()) for region in partition(graph)]
    assert process_time() - start < 3 * 0.5  # head, layer and tail
    for space in spaces:
        assert space.saturation_s < 0.5
        assert space.nodes_before_pruning < 5000
        assert space.rule_s  # those that matched, where egglog is of version 14
        slowest = max(space.rule_s, key=lambda rule: space.rule_s[rule])
        assert space.rule_s[slowest] < 0.1, slowest


def test_unrolled_layers_take_time_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 layers as one region: nothing explodes where layers are not alike."""
    monkeypatch.setattr(regions, "_longest_repetition", lambda *_: None)
    spaces = {}
    for layers in (4, 32):
        graph = TinyLlama(layers, DType.U4).graph
        (region,) = partition(graph)
        spaces[layers] = explore(region, graph, native_ops())
    growth = spaces[32].nodes_before_pruning / spaces[4].nodes_before_pruning
    assert growth < 8.5
    assert spaces[32].saturation_s < 5
    assert max(spaces[32].rule_s.values()) < 1
