"""Text to token ids and back, for any model that the server can load.

`tokenizers` does the encoding. Decoding is done here from each token's raw bytes, because a server
decodes answers as they come, token by token, and a token may hold a part of a character.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from models import gguf_tokenizer
from models.chat_template import ChatTemplate, ChatTemplateError, Message
from models.errors import ModelFileError
from models.gguf_file import GgufFile
from models.json_files import read_object
from models.token_bytes import TokenBytes

__all__ = ["ChatTemplateError", "Tokenizer", "load_tokenizer"]

_DEFAULT_TEMPLATE = "default"


class Tokenizer:
    """A model's vocabulary, special tokens and chat template.

    `special_tokens` gives the token of each role (`bos_token`, `eos_token`, ...) as the checkpoint
    names them; `end_tokens` are further tokens that end a text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        end_tokens: Iterable[str] = (),
        template: str | None = None,
    ) -> None:
        self._backend = backend
        self._bytes = TokenBytes(backend)
        self._template = None if template is None else ChatTemplate(template, special_tokens)
        ends = dict.fromkeys([special_tokens.get("eos_token"), *end_tokens])
        ids = (self._id(token) for token in ends)
        self.bos_token_id = self._id(special_tokens.get("bos_token"))
        self.eos_token_ids = tuple(id_ for id_ in ids if id_ is not None)
        self.special_ids = frozenset(
            id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.vocab_size = _vocab_size(backend)

    @property
    def chat_template(self) -> str | None:
        return None if self._template is None else self._template.source

    @property
    def adds_space_prefix(self) -> bool:
        """Whether texts are encoded with a space in front, which decoding drops (SentencePiece's
        dummy prefix).
        """
        return self._bytes.adds_space_prefix

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. Special tokens that are written out in it are recognised.

        `add_special_tokens` puts BOS or EOS around it where the model wants them.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids from its start; bytes that are no UTF-8 become U+FFFD."""
        skip = self.special_ids if skip_special_tokens else frozenset()
        text = self.bytes_of(ids, skip).decode(errors="replace")
        return text.removeprefix(" ") if self.adds_space_prefix else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, perhaps a part of a character; none for an unknown id."""
        return self._bytes[token_id]

    def bytes_of(self, ids: Iterable[int], skip: Container[int] = ()) -> bytes:
        """The bytes of ids one after another, without those in `skip`."""
        return b"".join(self._bytes[id_] for id_ in ids if id_ not in skip)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation. Raises `ChatTemplateError`, also for a model without a
        template.
        """
        if self._template is None:
            raise ChatTemplateError("this model has no chat template")
        return self._template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)


def _vocab_size(backend: tokenizers.Tokenizer) -> int:
    """One more than the highest id: vocabularies may have holes, so counting tokens falls short."""
    size: int = backend.get_vocab_size(with_added_tokens=True)
    while backend.id_to_token(size) is not None:
        size += 1
    return size


def load_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a Hugging Face directory or a GGUF file. Raises `ModelFileError`."""
    path = Path(path)
    try:
        return _from_directory(path) if path.is_dir() else _from_gguf(path)
    except ChatTemplateError as error:
        raise ModelFileError(path, f"its chat template does not compile: {error}") from None


def _from_directory(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.exists():
        raise ModelFileError(path, "there is no such file, and no other tokenizer file is read")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise ModelFileError(path, f"it is no tokenizer: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    files = (directory / name for name in ("special_tokens_map.json", "tokenizer_config.json"))
    config: dict[str, Any] = {}
    for file in files:
        config |= read_object(file) if file.exists() else {}
    return Tokenizer(backend, _special_tokens(config), template=_find_template(directory, config))


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The `*_token` entries, each a string or a serialised AddedToken."""
    tokens = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens


def _find_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    """A file of its own goes before the entry in the config, which is a template or a list of named
    ones.
    """
    file = directory / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    entry = config.get("chat_template")
    if isinstance(entry, list):
        named = {one.get("name"): one.get("template") for one in entry if isinstance(one, dict)}
        entry = named.get(_DEFAULT_TEMPLATE)
    if entry is not None and not isinstance(entry, str):
        raise ModelFileError(directory / "tokenizer_config.json", "its chat_template is no text")
    return entry


def _from_gguf(path: Path) -> Tokenizer:
    file = GgufFile(path)
    try:
        vocabulary = gguf_tokenizer.read_vocabulary(path, file.metadata)
    finally:
        file.close()
    return Tokenizer(
        gguf_tokenizer.build(vocabulary),
        vocabulary.special_tokens,
        vocabulary.end_tokens,
        vocabulary.chat_template,
    )
