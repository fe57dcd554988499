"""Detokenisation in pieces gives the text of the whole, however the ids are cut."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.detokenizer import Detokenizer
from models.tokenizer import Tokenizer

COMMON = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def pieces(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(bounds)]


def detokenize(
    tokenizer: Tokenizer, parts: list[list[int]], skip: bool, from_start: bool = True
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip, from_start=from_start)
    return [*(detokenizer.push(part) for part in parts), detokenizer.flush()]


cuts = st.lists(st.integers(0, 60), max_size=20)


@COMMON
@given(st.lists(st.integers(0, 49151), max_size=50), cuts, st.booleans())
def test_any_split_of_any_byte_level_ids(
    smollm2_tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool
) -> None:
    texts = detokenize(smollm2_tokenizer, pieces(ids, cuts), skip)
    assert "".join(texts) == smollm2_tokenizer.decode(ids, skip)


@COMMON
@given(st.lists(st.integers(0, 511), max_size=50), cuts, st.booleans())
def test_any_split_of_any_sentencepiece_ids(
    stories_tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool
) -> None:
    texts = detokenize(stories_tokenizer, pieces(ids, cuts), skip)
    assert "".join(texts) == stories_tokenizer.decode(ids, skip)


@COMMON
@given(st.text(max_size=40))
def test_a_valid_text_never_shows_half_a_character(
    smollm2_tokenizer: Tokenizer, stories_tokenizer: Tokenizer, text: str
) -> None:
    for tokenizer in (smollm2_tokenizer, stories_tokenizer):
        ids = tokenizer.encode(text)
        *pushed, rest = detokenize(tokenizer, [[id_] for id_ in ids], True)
        assert "".join(pushed) == tokenizer.decode(ids)
        assert rest == ""


@COMMON
@given(st.text(max_size=20), st.text(max_size=20))
def test_an_answer_goes_on_where_its_prompt_ended(
    stories_tokenizer: Tokenizer, prompt: str, answer: str
) -> None:
    before = stories_tokenizer.encode("." + prompt)
    after = stories_tokenizer.encode(answer, add_special_tokens=False)
    texts = detokenize(stories_tokenizer, [after], True, from_start=False)
    whole = stories_tokenizer.decode(before + after)
    assert stories_tokenizer.decode(before) + "".join(texts) == whole


def test_a_character_comes_with_its_last_byte(stories_tokenizer: Tokenizer) -> None:
    """The grinning face is F0 9F 98 80, and stories260K has a token a byte, from id 3 on."""
    face = [3 + byte for byte in (0xF0, 0x9F, 0x98, 0x80)]
    assert detokenize(stories_tokenizer, [[i] for i in face], True) == ["", "", "", "😀", ""]
    assert detokenize(stories_tokenizer, [face[:2], face[2:]], True) == ["", "😀", ""]


def test_half_a_character_is_replaced_when_no_byte_can_mend_it(
    stories_tokenizer: Tokenizer,
) -> None:
    half, letter = 3 + 0xF0, 3 + ord("a")
    assert detokenize(stories_tokenizer, [[half]], True) == ["", "\ufffd"]
    assert detokenize(stories_tokenizer, [[half], [letter]], True) == ["", "\ufffda", ""]


def test_special_tokens_are_shown_or_skipped(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("<|im_start|>Hi<|im_end|>")
    assert "".join(detokenize(smollm2_tokenizer, [ids], True)) == "Hi"
    assert "".join(detokenize(smollm2_tokenizer, [ids], False)) == "<|im_start|>Hi<|im_end|>"


def test_the_space_in_front_belongs_to_the_start_of_a_text(stories_tokenizer: Tokenizer) -> None:
    ids = stories_tokenizer.encode("Once upon")
    parts = [[id_] for id_ in ids]
    assert "".join(detokenize(stories_tokenizer, parts, True, from_start=True)) == "Once upon"
    assert "".join(detokenize(stories_tokenizer, parts, True, from_start=False)) == " Once upon"
