"""Chat templates: a checkpoint's Jinja source, from messages to the prompt's text.

Templates come with downloaded checkpoints, so they run in a sandbox. What they may use beside Jinja
itself is what Hugging Face documents for `apply_chat_template`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]

_CUT = "<egglm-continue-here> "
"""Marks the end of the message to continue; its last space shows whether the template trims
messages.
"""

_PYTHON_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class ChatTemplateError(Exception):
    """A template that cannot be used, or that refused the messages; the template's own words where
    it has any.
    """


class ChatTemplate:
    """A compiled template. Raises `ChatTemplateError` if it does not compile.

    `tokens` are names of special tokens that it may use, such as `bos_token`.
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._tokens = dict(tokens or {})
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"line {error.lineno}: {error}") from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text.

        `add_generation_prompt` opens an answer; `continue_final_message` instead ends the text
        inside the last message. `variables` are passed on to the template.

        Raises `ChatTemplateError`.
        """
        given = list(messages)
        if continue_final_message and given:
            given[-1] = _open_ended(given[-1])
        context = {
            **self._tokens,
            "tools": tools,
            "documents": None,
            "continue_final_message": continue_final_message,
            **(variables or {}),
            "messages": given,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(context)
        except TemplateError as error:
            raise ChatTemplateError(error.message or type(error).__name__) from error
        except _PYTHON_ERRORS as error:
            raise ChatTemplateError(f"{type(error).__name__}: {error}") from error
        return _cut(text) if continue_final_message else text


def _open_ended(message: Message) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        raise ChatTemplateError("only a message whose content is a text can be continued")
    return {**message, "content": content + _CUT}


def _cut(text: str) -> str:
    """The text up to the mark. A template that trims messages would have trimmed the spaces before
    it as well.
    """
    at = text.rfind(_CUT.rstrip())
    if at < 0:
        raise ChatTemplateError("the template does not write out the message to continue")
    return text[:at] if text.startswith(_CUT, at) else text[:at].rstrip()


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks the assistant's part for training: only
    its body counts.
    """

    tags = {"generation"}  # noqa: RUF012 that is how Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter would escape it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
