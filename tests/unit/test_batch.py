"""The flat arrays of a step, by hand."""

import numpy as np

from engine.batch import Chunk, build_batch
from engine.messages import Generate, SamplingParams
from engine.request import Request
from engine.sampling import Sampler


def request(prompt: list[int], pages: list[int]) -> Request:
    params = SamplingParams(max_tokens=50)
    sampler = Sampler(params, np.array(prompt, np.int32), 1000)
    made = Request(Generate("r", prompt, params), 0, 512, sampler)
    made.append_pages(pages)
    return made


def test_a_prefill_chunk_beside_a_decode() -> None:
    prefill = request([100 + i for i in range(40)], [7, 2, 9])
    decode = request([1, 2, 3], [4])
    batch, first_rows = build_batch([Chunk(prefill, 14, 5, 0), Chunk(decode, 2, 1, 1)])
    assert batch.token_ids.tolist() == [114, 115, 116, 117, 118, 3]
    assert batch.positions.tolist() == [14, 15, 16, 17, 18, 2]
    assert batch.slots.tolist() == [126, 127, 32, 33, 34, 66]
    assert batch.query_start.tolist() == [0, 5, 6]
    assert batch.page_table.tolist() == [[7, 2], [4, 0]]
    assert batch.out_rows.tolist() == [5]
    assert first_rows == [0, 0]


def test_rows_of_several_chunks() -> None:
    scored = request([5, 6, 7, 8], [0])
    silent = request([1] * 20, [1, 2])
    batch, first_rows = build_batch(
        [Chunk(scored, 0, 4, 3), Chunk(silent, 0, 17, 0), Chunk(request([9], [3]), 0, 1, 1)]
    )
    assert batch.out_rows.tolist() == [1, 2, 3, 21]
    assert first_rows == [0, 3, 3]


def test_a_batch_that_wants_no_logits_asks_for_one_row() -> None:
    batch, _ = build_batch([Chunk(request([1] * 20, [0, 1]), 0, 16, 0)])
    assert batch.out_rows.tolist() == [15]


def test_a_request_grows_beyond_its_first_arrays() -> None:
    grown = request([1, 2, 3], [5])
    for token in range(40):
        grown.append_token(token)
    grown.append_pages([6])
    grown.append_pages([8])
    batch, _ = build_batch([Chunk(grown, 42, 1, 1)])
    assert batch.token_ids.tolist() == [39]
    assert batch.slots.tolist() == [8 * 16 + 10]
    assert batch.page_table.tolist() == [[5, 6, 8]]
    assert grown.num_output == 40
