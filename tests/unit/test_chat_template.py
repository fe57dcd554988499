"""What chat templates may do, as Hugging Face documents it, and what they may not."""

from typing import Any

import pytest

from models.chat_template import ChatTemplate, ChatTemplateError

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
TURNS = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TRIMMED = TURNS.replace("m['content']", "m['content'] | trim")


def test_a_conversation_with_and_without_an_opened_answer() -> None:
    template = ChatTemplate(TURNS)
    assert template.render(HI) == "<user>Hi</>\n<assistant>"
    assert template.render(HI, add_generation_prompt=False) == "<user>Hi</>\n"


def test_blocks_leave_no_line_and_no_indentation() -> None:
    source = "{% if true %}\n    {% set a = 1 %}\nx\n    {% endif %}\ny"
    assert ChatTemplate(source).render([]) == "x\ny"


def test_special_tokens_tools_and_variables_are_there() -> None:
    source = "{{ bos_token }}{{ tools[0]['name'] }}{{ deep }}{{ documents is none }}"
    template = ChatTemplate(source, {"bos_token": "<s>"})
    text = template.render([], tools=[{"name": "add"}], variables={"deep": 3})
    assert text == "<s>add3True"


def test_a_variable_goes_before_a_special_token() -> None:
    template = ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"})
    assert template.render([], variables={"bos_token": "<t>"}) == "<t>"


@pytest.mark.parametrize(
    ("expression", "json"),
    [
        ("{'b': '<é>', 'a': none} | tojson", '{"b": "<é>", "a": null}'),
        ("'é' | tojson(ensure_ascii=true)", '"\\u00e9"'),
        ("[1, 2] | tojson(indent=1)", "[\n 1,\n 2\n]"),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=true)", '{"a": 2, "b": 1}'),
        ("{'a': 1} | tojson(separators=(',', ':'))", '{"a":1}'),
    ],
)
def test_tojson_writes_plain_json(expression: str, json: str) -> None:
    assert ChatTemplate("{{ " + expression + " }}").render([]) == json


def test_the_date_is_at_hand() -> None:
    assert ChatTemplate("{{ strftime_now('%%%d') }}").render([])[:1] == "%"
    assert 2024 < int(ChatTemplate("{{ strftime_now('%Y') }}").render([])) < 3000


def test_the_tag_for_training_leaves_its_body() -> None:
    source = (
        "{% for m in messages %}a{% generation %}{{ m.content }}{% endgeneration %}b{% endfor %}"
    )
    assert ChatTemplate(source).render(HI) == "aHib"


def test_loops_may_break() -> None:
    source = "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert ChatTemplate(source).render([]) == "1"


def test_a_refusal_has_the_templates_own_words() -> None:
    with pytest.raises(ChatTemplateError, match=r"^Roles must alternate$"):
        ChatTemplate("{{ raise_exception('Roles must alternate') }}").render(HI)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ messages[0].absent.name }}", "has no attribute 'absent'"),
        ("{{ messages[5]['content'] }}", "no element 5"),
        ("{{ messages[0]['content'] + 1 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ absent() }}", "'absent' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
    ],
)
def test_every_failure_is_the_templates(source: str, problem: str) -> None:
    with pytest.raises(ChatTemplateError, match=problem):
        ChatTemplate(source).render(HI)


def test_a_template_that_does_not_compile_is_refused_at_once() -> None:
    with pytest.raises(ChatTemplateError, match="line 2"):
        ChatTemplate("\n{% for %}")


@pytest.mark.parametrize("content", ["The answer", "The answer is ", " a\n", ""])
def test_an_answer_to_be_continued_is_left_open(content: str) -> None:
    messages = [*HI, {"role": "assistant", "content": content}]
    text = ChatTemplate(TURNS).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text == f"<user>Hi</>\n<assistant>{content}"
    assert messages[1]["content"] == content


def test_a_template_that_trims_also_trims_the_answer_to_be_continued() -> None:
    messages = [*HI, {"role": "assistant", "content": " The answer is "}]
    text = ChatTemplate(TRIMMED).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text == "<user>Hi</>\n<assistant>The answer is"


def test_a_text_that_occurs_twice_is_continued_at_its_end() -> None:
    messages = [{"role": "user", "content": "same"}, {"role": "assistant", "content": "same"}]
    text = ChatTemplate(TURNS).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text == "<user>same</>\n<assistant>same"


def test_what_cannot_be_continued() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    with pytest.raises(ChatTemplateError, match="content is a text"):
        ChatTemplate(TURNS).render(parts, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="does not write out"):
        ChatTemplate("nothing").render(HI, continue_final_message=True)
