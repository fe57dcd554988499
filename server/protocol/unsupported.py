"""Fields that clients know from OpenAI or from other servers and that EggLM does not build yet.

Naming one gets a 400, since ignoring it would answer another question than the one asked. A value
that asks for nothing is let through. A name that is in no list is ignored, as OpenAI does.
"""

from pydantic_core import PydanticCustomError

Neutral = dict[str, tuple[object, ...]]
"""By field: the values beside null that ask for nothing."""

COMMON: Neutral = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "cache_salt": (),
    "data_parallel_rank": (),
    "dry_multiplier": (0,),
    "ebnf": (),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "json_schema": (),
    "kv_transfer_params": (),
    "logit_processors": ([],),
    "logits_processors": ([],),
    "lora_path": (),
    "mirostat": (0,),
    "no_stop_trim": (False,),
    "priority": (0,),
    "prompt_logprobs": (),
    "regex": (),
    "repetition_detection": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "stop_regex": (),
    "structured_outputs": (),
    "thinking_token_budget": (),
    "top_n_sigma": (),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermark": (False,),
    "xtc_probability": (0,),
}
COMPLETIONS: Neutral = COMMON | {
    "best_of": (),
    "prompt_embeds": (),
    "suffix": ("",),
}
CHAT: Neutral = COMMON | {
    "audio": (),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": (),
    "include_reasoning": (True,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "reasoning": (),
    "reasoning_effort": ("none",),
    "tool_choice": ("none",),
    "tools": (),
    "verbosity": (),
    "web_search_options": (),
}
EMBEDDINGS: Neutral = {
    "additional_data": (),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "normalize": (),
    "priority": (0,),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
}


def refuse_unsupported(body: object, fields: Neutral) -> None:
    """Raises a validation error for the first of `fields` that `body` asks something with."""
    if not isinstance(body, dict):
        return
    for name, value in body.items():
        if name not in fields or value is None or value in fields[name]:
            continue
        if name == "best_of" and value == (body.get("n") or 1):
            continue
        raise PydanticCustomError(
            "unsupported_parameter", "this server does not support it yet", {"param": name}
        )
