"""Gemma 2 (Gemma Team 2024): Gemma 3's layer without norms of q and k, with caps on scores and logits.

Every other layer sees a window, and all rotate alike.
"""

from dataclasses import replace
from functools import partial

from models import gemma3
from models.architecture import Architecture
from models.config import ModelConfig
from models.fields import Fields
from models.windows import but_each


def _read(fields: Fields, common: ModelConfig) -> ModelConfig:
    return replace(
        common,
        norm_offset=0.0 if fields.is_gguf else 1.0,  # GGUF's weights of norms have it in them
        query_scale=gemma3.query_scale(fields, common, size_27b=46),
        attention_cap=fields.optional("attn_logit_softcapping", 50.0),
        logit_cap=fields.optional("final_logit_softcapping", 30.0),
    )


ARCHITECTURE = Architecture(
    partial(gemma3.build, head_norms=False),
    windows=but_each(2, default=4096),
    tied=True,
    activations=("gelu_pytorch_tanh",),
    read=_read,
    gguf_names=gemma3.GGUF_NAMES,
)
