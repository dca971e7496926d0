"""BERT, RoBERTa, XLM-RoBERTa."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Family, Names, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.transforms import drop_first
from wgpu_backend.files.huggingface.values import Values

ENDS: Names = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
}
LAYER: Names = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


@family("BertModel", "BertForMaskedLM", "CamembertModel")
class Bert(Family):
    """A text encoder; the head that predicts masked words is left out."""

    architecture = "bert"
    activation = "gelu_erf"
    defaults: ClassVar[Mapping[str, object]] = {"hidden_act": "gelu", "layer_norm_eps": 1e-12}
    needed: ClassVar[Mapping[str, object]] = {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    }
    prefixes = ("bert.", "roberta.")
    useless = r"pooler\.dense|^cls\.|^lm_head\."
    names = make_names(ENDS, LAYER, stack="encoder.layer")

    def keys(self) -> dict[str, Value]:
        """Return keys for bidirectional attention and token types."""
        types = self.settings.uint("type_vocab_size", default=1)
        return {"attention.causal": False, "tokenizer.ggml.token_type_count": types}


def positions(x: Values, settings: Settings) -> Values:
    """Drop the position embeddings of the padding token and of those before it."""
    return drop_first(x, first_position(settings))


def first_position(settings: Settings) -> int:
    """Return the row of the first token: the one after the padding's, if there is one."""
    return 1 + settings.uint("pad_token_id") if "pad_token_id" in settings else 0


@family("RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM")
class Roberta(Bert):
    """BERT whose positions begin after that of the padding token."""

    defaults: ClassVar[Mapping[str, object]] = {**Bert.defaults, "pad_token_id": 1}
    names = make_names(
        {**ENDS, "embeddings.position_embeddings": {"position_embd": positions}},
        LAYER,
        stack="encoder.layer",
    )

    def keys(self) -> dict[str, Value]:
        """Return BERT's keys, with fewer positions."""
        rows = self.settings.uint("max_position_embeddings")
        return {**super().keys(), "context_length": rows - first_position(self.settings)}
