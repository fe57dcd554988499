"""Text and messages to token ids, off the event loop when they are long."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from server.protocol.chat import Conversation, Message
from server.state import ServedModel

Result = TypeVar("Result")

LONG_TEXT_CHARS = 8192
"""Longer texts are rendered and tokenized on a thread: at about 1 µs a character, more would hold
up streams.
"""


async def encode_texts(
    model: ServedModel, texts: Sequence[str], add_special_tokens: bool
) -> list[list[int]]:
    """Ids of each text, with one BOS where the model has one, even if the text starts with it."""

    def encode() -> list[list[int]]:
        encoded = (model.tokenizer.encode(text, add_special_tokens) for text in texts)
        return [_single_bos(model, ids) for ids in encoded]

    return await _off_loop_if_long(encode, sum(map(len, texts)))


async def encode_chat(model: ServedModel, conversation: Conversation) -> list[int]:
    """Ids of the conversation as the model's template writes it.

    Raises `models.tokenizer.ChatTemplateError` if the template refuses it.
    """

    def render_and_encode() -> list[int]:
        text = render(model, conversation)
        return _single_bos(model, model.tokenizer.encode(text, conversation.add_special_tokens))

    chars = sum(len(message.text) for message in conversation.messages)
    return await _off_loop_if_long(render_and_encode, chars)


async def _off_loop_if_long(run: Callable[[], Result], chars: int) -> Result:
    return run() if chars <= LONG_TEXT_CHARS else await asyncio.to_thread(run)


def render(model: ServedModel, conversation: Conversation) -> str:
    return model.tokenizer.apply_chat_template(
        [_for_template(message) for message in conversation.messages],
        add_generation_prompt=conversation.opens_answer,
        continue_final_message=conversation.continue_final_message,
        **(conversation.chat_template_kwargs or {}),
    )


def _single_bos(model: ServedModel, ids: list[int]) -> list[int]:
    """Drops a BOS that the tokenizer put before one that the text has already."""
    bos = model.tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def _for_template(message: Message) -> dict[str, Any]:
    """The message as templates know it.

    Its content is a string, tool arguments are an object, and OpenAI's newer name `developer` is
    undone.
    """
    role = "system" if message.role == "developer" else message.role
    fields: dict[str, Any] = {"role": role, "content": message.text}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                **call.model_dump(exclude_none=True),
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return fields


def _arguments(given: str | dict[str, Any]) -> object:
    """Arguments as the object that their JSON says; as they are if the model cut them."""
    if isinstance(given, dict):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given
