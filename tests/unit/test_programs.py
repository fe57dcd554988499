"""What the compiler makes of each small model: the same programs as before, and the same numbers by any of them."""

import os
from difflib import unified_diff

import numpy as np
import pytest
from candidates import outputs_of, random_programs, space_of
from tiny import NAMES, PAGES, PROGRAMS, prepared, program_text

from engine.kv_cache import PAGE_SIZE

GENOMES = int(os.environ.get("EGGLM_TEST_GENOMES", "100"))
DIMS = {"t": 11, "r": 2, "p": 2, "o": 3, "slots": PAGES * PAGE_SIZE}


@pytest.mark.parametrize("name", NAMES)
def test_the_programs_are_those_that_were_seen(name: str) -> None:
    """A refactoring changes nothing here; where a change is meant, `tests/goldens/make_programs.py` records it."""
    want, found = (PROGRAMS / f"{name}.txt").read_text(), program_text(name)
    lines = unified_diff(want.splitlines(), found.splitlines(), "recorded", "now", lineterm="")
    assert found == want, "\n".join(lines)


@pytest.mark.parametrize("device", ["native", "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_programs_of_random_genomes_agree(name: str, device: str) -> None:
    """Two requests, one of which continues after 7 cached tokens."""
    made = prepared(name, device)
    i, rng = made.inputs, np.random.default_rng(0)
    table = np.array([[3, 5], [9, 0]], np.int32)
    request = np.array([0] * 9 + [1] * 2, np.int32)
    positions = np.concatenate([np.arange(9), np.arange(7, 9)]).astype(np.int32)
    data = {
        i.token_ids: rng.integers(0, 250, 11).astype(np.int32),
        i.positions: positions,
        i.slots: table[request, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE,
        i.query_start: np.array([0, 9, 11], np.int32),
        i.page_table: table,
        i.out_rows: np.array([2, 8, 10], np.int32),
    }
    for pool in made.step.cache:
        shape = (DIMS["slots"], *pool.shape[1:])
        data[pool] = rng.uniform(-1, 1, shape).astype(pool.dtype.numpy)
    count = GENOMES if device == "native" else GENOMES // 10
    programs = random_programs(space_of(made.graph, made.runtime), 0, count, DIMS)
    assert len(programs) > count // 2
    first = None
    for program, (logits, *_) in outputs_of(made.graph, made.runtime, programs, data, DIMS):
        first = logits if first is None else first
        np.testing.assert_allclose(logits, first, rtol=0, atol=0.02, err_msg=str(program))
