"""Token ids against other programs' (tests/goldens), and small vocabularies counted by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from models import gguf_tokenizer
from models.errors import ModelFileError
from models.gguf_file import GgufFile
from models.tokenizer import Tokenizer, load_tokenizer

GOLDENS = Path(__file__).parent.parent / "goldens"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
NO_TOKEN = 2**32 - 1


def golden(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((GOLDENS / name).read_text())
    return cases


def from_metadata(**metadata: Any) -> Tokenizer:
    keys = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    vocabulary = gguf_tokenizer.read_vocabulary(Path("model.gguf"), keys)
    return Tokenizer(
        gguf_tokenizer.build(vocabulary), vocabulary.special_tokens, vocabulary.end_tokens
    )


@pytest.mark.parametrize(
    "case", golden("smollm2_tokenizer_ids.json"), ids=lambda c: repr(c["text"])
)
def test_byte_level_ids_are_those_of_transformers(
    smollm2_tokenizer: Tokenizer, case: dict[str, Any]
) -> None:
    assert smollm2_tokenizer.encode(case["text"]) == case["ids"]
    assert smollm2_tokenizer.decode(case["ids"], skip_special_tokens=False) == case["text"]


@pytest.mark.parametrize(
    "case", golden("stories260k_tokenizer_ids.json"), ids=lambda c: repr(c["text"])
)
def test_sentencepiece_ids_are_those_of_llama_cpp(
    stories_tokenizer: Tokenizer, case: dict[str, Any]
) -> None:
    assert stories_tokenizer.encode(case["text"]) == case["ids"]
    assert stories_tokenizer.decode(case["ids"]) == case["text"]


@pytest.mark.parametrize("case", golden("smollm2_prompts.json"), ids=lambda c: c["id"])
def test_prompts_are_those_of_transformers_and_llama_cpp(
    smollm2_tokenizer: Tokenizer, case: dict[str, Any]
) -> None:
    if "messages" in case:
        assert smollm2_tokenizer.apply_chat_template(case["messages"]) == case["prompt"]
    assert smollm2_tokenizer.encode(case["prompt"], add_special_tokens=False) == case["prompt_ids"]


def test_what_smollm2_says_of_itself(smollm2_tokenizer: Tokenizer) -> None:
    """By the model card: 49,152 tokens, of which the first 17 are special; ChatML."""
    assert smollm2_tokenizer.vocab_size == 49152
    assert smollm2_tokenizer.special_ids == frozenset(range(17))
    assert smollm2_tokenizer.bos_token_id == 1
    assert smollm2_tokenizer.eos_token_ids == (2,)
    assert smollm2_tokenizer.decode([1, 19556, 2]) == "Hello"
    assert smollm2_tokenizer.decode([1, 19556, 2], False) == "<|im_start|>Hello<|im_end|>"


def test_both_kinds_decode_as_tokenizers_does(
    smollm2: Path, smollm2_tokenizer: Tokenizer, stories: Path, stories_tokenizer: Tokenizer
) -> None:
    for path, tokenizer in ((smollm2, smollm2_tokenizer), (stories, stories_tokenizer)):
        file = GgufFile(path)
        backend = gguf_tokenizer.build(gguf_tokenizer.read_vocabulary(path, file.metadata))
        file.close()
        for case in golden("smollm2_tokenizer_ids.json"):
            ids = tokenizer.encode(case["text"])
            for skip in (False, True):
                assert tokenizer.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)


def byte_letters() -> list[str]:
    """GPT-2's letters, one a byte, as `tokenizers` spells them."""
    spell = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = [spell.pre_tokenize_str(chr(byte))[0][0] for byte in range(0x80)]
    rest = sorted(set(tokenizers.pre_tokenizers.ByteLevel.alphabet()) - set(letters))
    return letters + rest


DIGIT_PAIRS = ["12", "34", "1234", "'R", "'RE"]


def digits_tokenizer(pre: str, **metadata: Any) -> Tokenizer:
    """Ids of ASCII are their codes; 256.. are `DIGIT_PAIRS`, then `</s>`."""
    tokens = [*byte_letters(), *DIGIT_PAIRS, "</s>"]
    return from_metadata(
        model="gpt2",
        pre=pre,
        tokens=tokens,
        token_type=[NORMAL] * (len(tokens) - 1) + [CONTROL],
        merges=["1 2", "3 4", "12 34", "' R", "'R E"],
        **metadata,
    )


@pytest.mark.parametrize(
    ("pre", "ids"),
    [
        ("smollm", [49, 50, 51, 52]),
        ("qwen2", [49, 50, 51, 52]),
        ("llama-bpe", [256, 51, 52]),  # three digits a word: 123|4
        ("gpt-2", [258]),
        ("default", [258]),
    ],
)
def test_pre_tokenizers_cut_digits_each_in_its_way(pre: str, ids: list[int]) -> None:
    assert digits_tokenizer(pre).encode("1234", add_special_tokens=False) == ids


@pytest.mark.parametrize(
    ("pre", "ids"),
    [("llama-bpe", [73, 260]), ("qwen2", [73, 260]), ("gpt-2", [73, 39, 82, 69])],
)
def test_only_newer_pre_tokenizers_know_capital_contractions(pre: str, ids: list[int]) -> None:
    assert digits_tokenizer(pre).encode("I'RE", add_special_tokens=False) == ids


def test_llama_3_takes_whole_words_that_merges_do_not_make() -> None:
    tokens = [*byte_letters(), "xyz", "<|begin|>"]
    kinds = [NORMAL] * 257 + [CONTROL]
    made = {
        pre: from_metadata(
            model="gpt2", pre=pre, tokens=tokens, token_type=kinds, merges=[], bos_token_id=257
        )
        for pre in ("llama-bpe", "gpt-2")
    }
    assert made["llama-bpe"].encode("xyz") == [257, 256]
    assert made["gpt-2"].encode("xyz") == [120, 121, 122]


def test_qwen_composes_characters() -> None:
    tokenizer = digits_tokenizer("qwen2")
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_ids_that_are_out_of_range_name_no_token() -> None:
    tokenizer = digits_tokenizer("gpt-2", bos_token_id=NO_TOKEN, eos_token_id=261)
    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == (261,)
    assert digits_tokenizer("gpt-2", eos_token_id=NO_TOKEN).eos_token_ids == ()
    assert digits_tokenizer("gpt-2", eos_token_id=261, eot_token_id=256).eos_token_ids == (261, 256)


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
WORDS = {"\u2581": -9.0, "a": -1.0, "b": -2.0, "c": -3.0, "ab": -5.0, "bc": -4.0, "\u2581a": -8.0}
A, B, C, AB, BC, SPACE_A = (len(PIECES) + i for i in (1, 2, 3, 4, 5, 6))
USER = len(PIECES) + len(WORDS)


def sentencepiece(**metadata: Any) -> Tokenizer:
    return from_metadata(
        model="llama",
        tokens=[*PIECES, *WORDS, "<tool>"],
        scores=[0.0] * len(PIECES) + list(WORDS.values()) + [0.0],
        token_type=[UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * len(WORDS)
        + [USER_DEFINED],
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        **metadata,
    )


def test_sentencepiece_joins_the_best_score_first() -> None:
    tokenizer = sentencepiece()
    # " abc": `bc` (-4) goes before `ab` (-5), and then the space joins `a`.
    assert tokenizer.encode("abc") == [1, SPACE_A, BC]
    assert tokenizer.encode("cab", add_special_tokens=False) == [len(PIECES), C, AB]
    assert tokenizer.decode([1, SPACE_A, BC]) == "abc"


def test_sentencepiece_spells_unknown_characters_in_bytes() -> None:
    tokenizer = sentencepiece(add_space_prefix=False, add_bos_token=False)
    assert tokenizer.encode("aé") == [A, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"
    assert tokenizer.decode([A, 3 + 0xC3, 3 + 0xA9]) == "aé"
    assert tokenizer.decode([SPACE_A]) == " a"


def test_sentencepiece_finds_user_defined_tokens_and_can_end_texts() -> None:
    tokenizer = sentencepiece(add_eos_token=True, add_space_prefix=False)
    assert tokenizer.encode("a<tool>b") == [1, A, USER, B, 2]
    assert USER not in tokenizer.special_ids
    assert tokenizer.decode([1, A, USER, B, 2]) == "a<tool>b"


def test_an_unknown_id_has_no_bytes() -> None:
    tokenizer = sentencepiece()
    assert tokenizer.vocab_size == USER + 1
    assert tokenizer.token_bytes(USER + 1) == b""
    assert tokenizer.decode([A, 10**9, B]) == "ab"


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({}, "no tokenizer"),
        ({"tokens": ["a"], "model": "rwkv"}, "'rwkv' is not supported"),
        ({"tokens": ["a"], "model": "gpt2", "pre": "new"}, "'new' is not supported"),
        ({"tokens": ["a"], "model": "gpt2", "merges": ["a b"]}, "damaged"),
        ({"tokens": ["a"], "model": "gpt2", "merges": ["a"]}, "merges has 'a'"),
        ({"tokens": ["a"], "model": "gpt2", "token_type": [1, 1]}, "2 entries for 1"),
        ({"tokens": ["a", 1], "model": "gpt2"}, "tokens has 1"),
        ({"tokens": "a", "model": "gpt2"}, "tokens is 'a'"),
        ({"tokens": ["\udc80"], "model": "gpt2"}, "damaged"),
        ({"tokens": ["a"], "model": "llama"}, "no tokenizer.ggml.scores"),
    ],
)
def test_damaged_metadata_is_named(metadata: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelFileError, match=f"model.gguf: .*{problem}"):
        from_metadata(**metadata)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A Hugging Face directory: one token a letter, truncation and padding switched on."""
    letters = {letter: id_ for id_, letter in enumerate(["<s>", "</s>", "<pad>", *"abc"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(letters, merges=[]))
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(["<s>", "</s>", "<pad>"])
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_hole_among_the_ids_counts(directory: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["model"]["vocab"]["b"], content["model"]["vocab"]["c"] = 6, 7
    (directory / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(directory)
    assert tokenizer.vocab_size == 8
    assert tokenizer.decode([3, 4, 5, 6, 7]) == "abc"


def write_config(directory: Path, **config: Any) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_directory_without_truncation_and_padding(directory: Path) -> None:
    eos = {"content": "</s>", "lstrip": False, "__type": "AddedToken"}
    write_config(directory, bos_token="<s>", eos_token=eos, model_max_length=2)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("abcab") == [3, 4, 5, 3, 4]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (1,))
    assert tokenizer.chat_template is None


def test_special_tokens_may_have_a_file_of_their_own(directory: Path) -> None:
    (directory / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>"}))
    assert load_tokenizer(directory).eos_token_ids == (1,)


def test_where_a_chat_template_may_lie(directory: Path) -> None:
    write_config(directory, chat_template="plain {{ bos_token }}", bos_token="<s>")
    assert load_tokenizer(directory).apply_chat_template([]) == "plain <s>"
    named = [{"name": "rag", "template": "rag"}, {"name": "default", "template": "listed"}]
    write_config(directory, chat_template=named)
    assert load_tokenizer(directory).chat_template == "listed"
    (directory / "chat_template.jinja").write_text("of its own")
    assert load_tokenizer(directory).chat_template == "of its own"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", "{", "no tokenizer"),
        ("tokenizer.json", "{}", "no tokenizer"),
        ("tokenizer_config.json", "[]", "no JSON object"),
        ("tokenizer_config.json", '{"chat_template": 1}', "no text"),
        ("chat_template.jinja", "{% if %}", "line 1"),
        ("chat_template.jinja", "{% for m in messages %}", "chat template"),
    ],
)
def test_damaged_files_of_a_directory_are_named(
    directory: Path, name: str, content: str, problem: str
) -> None:
    (directory / name).write_text(content)
    with pytest.raises(ModelFileError, match=problem):
        load_tokenizer(directory)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: there is no such file"):
        load_tokenizer(tmp_path)
