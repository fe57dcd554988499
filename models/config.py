"""What is known of a model before its weights are read."""

from dataclasses import dataclass

from engine.pooling import Pooling
from models.rope import Rope


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder; an architecture that has more of them reads them into a subclass.

    `windows` says for each layer how many positions it sees, None for all; layers with a window turn by `local_rope` if
    there is one. `norm_offset` is added to the weights of norms. `query_scale` is what scores are multiplied with,
    where that is not head_dim^-0.5. `rotated` says which layers have rotary embeddings at all, if not all of them. Caps
    bend scores and logits to cap * tanh(x / cap). `pooling` is of a model that makes embeddings.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    context_length: int
    rms_norm_eps: float
    rope: Rope
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    hidden_act: str = "silu"
    windows: tuple[int | None, ...] = ()
    local_rope: Rope | None = None
    norm_offset: float = 0.0
    query_scale: float | None = None
    rotated: tuple[bool, ...] = ()
    attention_cap: float | None = None
    logit_cap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    pooling: Pooling | None = None

    def window(self, layer: int) -> int | None:
        """Positions that a layer sees, its own included; None for all."""
        return self.windows[layer] if self.windows else None

    def rotates(self, layer: int) -> bool:
        return self.rotated[layer] if self.rotated else True

    @property
    def cached_per_token(self) -> int:
        """Elements of keys and values that all layers keep of a token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
