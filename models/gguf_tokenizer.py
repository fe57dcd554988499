"""Tokenizers out of GGUF metadata (`tokenizer.ggml.*`), built with `tokenizers`.

Two kinds are read: `gpt2`, byte-level BPE with merges and a named pre-tokenizer, and `llama`,
SentencePiece BPE with scores and byte tokens. The keys are described in ggml's docs/gguf.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from models.errors import ModelFileError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator"}
_SPACE = "\u2581"

_LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2_WORDS = _LLAMA_3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class GgufVocabulary:
    """What the metadata says, checked as far as it can be without building the tokenizer."""

    path: Path
    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    scores: list[float]
    merges: list[tuple[str, str]]
    special_tokens: dict[str, str]
    end_tokens: list[str]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    chat_template: str | None


def read_vocabulary(path: Path, metadata: Mapping[str, Any]) -> GgufVocabulary:
    """The `tokenizer.*` metadata of a file. Raises `ModelFileError`."""

    def find(key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, kind):
            raise ModelFileError(path, f"tokenizer.ggml.{key} is {_short(value)}")
        return value

    def entries(key: str, kind: type | tuple[type, ...], default: list[Any]) -> list[Any]:
        values: list[Any] = find(key, list, default)
        wrong = [value for value in values if not isinstance(value, kind)]
        if wrong:
            raise ModelFileError(path, f"tokenizer.ggml.{key} has {_short(wrong[0])} in it")
        return values

    tokens = entries("tokens", str, [])
    if not tokens:
        raise ModelFileError(path, "it has no tokenizer (tokenizer.ggml.tokens)")
    kinds = entries("token_type", int, [_NORMAL] * len(tokens))
    scores = entries("scores", (int, float), [])
    model, pre = find("model", str, ""), find("pre", str, "default")
    for key, values in (("token_type", kinds), ("scores", scores)):
        if values and len(values) != len(tokens):
            count = len(values)
            problem = f"tokenizer.ggml.{key} has {count} entries for {len(tokens)} tokens"
            raise ModelFileError(path, problem)

    def named(key: str) -> str | None:
        """Converters write 2**32 - 1 for a token that the model lacks."""
        id_ = metadata.get(f"tokenizer.ggml.{key}_token_id")
        return tokens[id_] if isinstance(id_, int) and 0 <= id_ < len(tokens) else None

    roles = {f"{role}_token": named(key) for role, key in _ROLES.items()}
    ends = [named("eot"), named("eom")]
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelFileError(path, f"tokenizer.chat_template is {_short(template)}")
    return GgufVocabulary(
        path=path,
        model=model,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        scores=scores,
        merges=[_pair(path, merge) for merge in entries("merges", str, [])],
        special_tokens={role: token for role, token in roles.items() if token is not None},
        end_tokens=[token for token in ends if token is not None],
        add_bos=find("add_bos_token", bool, model == "llama" or pre in _LLAMA_3_NAMES),
        add_eos=find("add_eos_token", bool, False),
        add_space_prefix=find("add_space_prefix", bool, model == "llama"),
        chat_template=template,
    )


def build(vocabulary: GgufVocabulary) -> Tokenizer:
    """The tokenizer. Raises `ModelFileError` for a kind that is not supported."""
    kinds = {"gpt2": _byte_level, "llama": _sentencepiece}
    if vocabulary.model not in kinds:
        raise ModelFileError(
            vocabulary.path,
            f"tokenizer {vocabulary.model!r} is not supported (supported: {', '.join(kinds)})",
        )
    try:
        tokenizer = kinds[vocabulary.model](vocabulary)
        _add_tokens(tokenizer, vocabulary)
    except ModelFileError:
        raise
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise ModelFileError(vocabulary.path, f"its tokenizer is damaged: {error}") from None
    return tokenizer


def _byte_level(vocabulary: GgufVocabulary) -> Tokenizer:
    if vocabulary.pre not in _PRE_TOKENIZERS:
        raise ModelFileError(
            vocabulary.path,
            f"pre-tokenizer {vocabulary.pre!r} is not supported "
            f"(supported: {', '.join(_PRE_TOKENIZERS)})",
        )
    ids = {token: id_ for id_, token in enumerate(vocabulary.tokens)}
    # Llama 3 has tokens that no sequence of its merges makes.
    whole_words = vocabulary.pre in _LLAMA_3_NAMES
    model = models.BPE(vocab=ids, merges=vocabulary.merges, ignore_merges=whole_words)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[vocabulary.pre]
    if vocabulary.pre in _QWEN_2_NAMES:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, letters])


_GPT_2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_LLAMA_3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN_2_NAMES = ("qwen2", "deepseek-r1-qwen")
_PRE_TOKENIZERS: dict[str, pre_tokenizers.PreTokenizer] = {
    "default": _GPT_2,
    "gpt-2": _GPT_2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT_2]),
    **dict.fromkeys(_LLAMA_3_NAMES, _split(_LLAMA_3_WORDS)),
    **dict.fromkeys(_QWEN_2_NAMES, _split(_QWEN_2_WORDS)),
}


def _sentencepiece(vocabulary: GgufVocabulary) -> Tokenizer:
    if not vocabulary.scores:
        raise ModelFileError(vocabulary.path, "it has no tokenizer.ggml.scores")
    ids = {token: id_ for id_, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.special_tokens.get("unk_token")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges_by_score(vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours that make the piece of the best score: as merges, every
    way to cut a piece into two others, the best pieces first.
    """
    pieces = {
        token: score
        for token, kind, score in zip(
            vocabulary.tokens, vocabulary.kinds, vocabulary.scores, strict=True
        )
        if kind == _NORMAL
    }
    return [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces, key=lambda piece: -pieces[piece])
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]


def _add_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Tokens that are matched before anything else, and BOS and EOS around a text."""
    special, plain = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind in (_CONTROL, _UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)
    bos = vocabulary.special_tokens.get("bos_token") if vocabulary.add_bos else None
    eos = vocabulary.special_tokens.get("eos_token") if vocabulary.add_eos else None
    around = [token for token in (bos, eos) if token is not None]
    if around:
        template = [token for token in (bos, "$A", eos) if token is not None]
        ids = [(token, vocabulary.tokens.index(token)) for token in around]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=ids
        )


def _pair(path: Path, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelFileError(path, f"tokenizer.ggml.merges has {_short(merge)} in it")
    return left, right


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
