"""BERT as a maker of embeddings (MiniLM, BGE, E5, GTE): Devlin et al. 2018, Reimers and Gurevych 2019."""

from dataclasses import dataclass

from engine.compiler import nn
from engine.compiler.graph import Graph
from engine.compiler.tensor import Tensor
from engine.model import StepGraph, StepInputs
from models.architecture import Architecture
from models.config import ModelConfig
from models.fields import Fields
from models.pooling import longest_prompt, read_pooling
from models.step import Step
from models.weights import WeightLoader


@dataclass(frozen=True)
class BertConfig(ModelConfig):
    """`positions` and `token_types` are the rows of the tables beside the words'."""

    positions: int = 0
    token_types: int = 0


def build(graph: Graph, inputs: StepInputs, weights: WeightLoader) -> StepGraph:
    """Hidden states of whole prompts, in which every token sees all others."""
    step = Step(graph, inputs, weights)
    c = step.config
    assert isinstance(c, BertConfig)
    root = "bert." if weights.has("bert.embeddings.word_embeddings.weight") else ""
    step.prefix = f"{root}embeddings"

    def table(name: str, rows: int) -> Tensor:
        return weights.matrix(graph, f"{step.prefix}.{name}_embeddings", rows, c.hidden_size)

    words = nn.gather_rows(table("word", c.vocab_size), inputs.token_ids)
    places = nn.gather_rows(table("position", c.positions), inputs.positions)
    kind = table("token_type", c.token_types).slice(0, 0, 1).squeeze(0)
    x = step.layer_norm("LayerNorm", words + places + kind.expand(0, words.shape[0]))
    for layer in range(c.num_layers):
        step.prefix = f"{root}encoder.layer.{layer}"
        q, k, v = (
            step.heads(f"attention.self.{part}", x, c.num_heads, bias=True)
            for part in ("query", "key", "value")
        )
        attended = step.attend(q, k, v, c.head_dim**-0.5, causal=False)
        x = x + step.project("attention.output.dense", attended, c.hidden_size, bias=True)
        x = step.layer_norm("attention.output.LayerNorm", x)
        h = step.project("intermediate.dense", x, c.intermediate_size, bias=True).gelu()
        x = x + step.project("output.dense", h, c.hidden_size, bias=True)
        x = step.layer_norm("output.LayerNorm", x)
    return step.states(x)


def _read(fields: Fields, common: ModelConfig) -> ModelConfig:
    if fields.is_gguf:
        raise fields.unsupported("bert as GGUF", "its Hugging Face directory")
    kind = fields.value("position_embedding_type", "absolute")
    if kind != "absolute":
        raise fields.unsupported(f"position_embedding_type {kind!r}", "absolute")
    for key in ("is_decoder", "add_cross_attention"):
        if fields.value(key):
            raise fields.unsupported(f"bert with {key}")
    positions = common.context_length
    directory = fields.path.parent
    own = {
        "context_length": longest_prompt(directory, positions),
        "rms_norm_eps": fields.constant("layer_norm_eps", 1e-12),
        "pooling": read_pooling(directory),
    }
    return BertConfig(
        **vars(common) | own, positions=positions, token_types=fields.size("type_vocab_size", 2)
    )


ARCHITECTURE = Architecture(
    build,
    activations=("gelu",),
    read=_read,
    ignored=r"(bert\.)?pooler\..*|cls\..*",  # classifies pairs, guesses hidden words
)
