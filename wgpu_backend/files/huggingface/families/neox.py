"""GPT-NeoX, Falcon, BLOOM: queries, keys and values of each head or group in one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Family, Names, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.transforms import ungroup_qkv
from wgpu_backend.files.huggingface.values import Values

MLP: Names = {"mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}


def ungroup_heads(x: Values, settings: Settings) -> Values:
    """Reorder a matrix whose heads have a key and a value each."""
    heads = settings.uint("num_attention_heads", "n_head")
    return ungroup_qkv(x, heads, heads)


def ungroup_shared(x: Values, settings: Settings) -> Values:
    """Reorder a matrix whose groups of heads share a key and a value."""
    heads = settings.uint("num_attention_heads", "n_head")
    return ungroup_qkv(x, heads, kv_heads(settings))


def kv_heads(settings: Settings) -> int:
    """Return a Falcon's number of key heads; the first architecture has one, or one per query."""
    heads = settings.uint("num_attention_heads", "n_head")
    if settings.flag("new_decoder_architecture", default=False):
        return settings.uint("num_kv_heads", "n_head_kv", default=heads)
    return 1 if settings.flag("multi_query", default=True) else heads


@family("GPTNeoXForCausalLM")
class GptNeoX(Family):
    """GPT-NeoX: Pythia and others."""

    architecture = "gptneox"
    biases: ClassVar[Mapping[str, str]] = {
        "attention_bias": r"attention\.(query_key_value|dense)\.bias$"
    }
    prefixes = ("gpt_neox.",)
    left_out = ("attention.head_count_kv", "attention.layer_norm_rms_epsilon")
    activation = "gelu_erf"
    is_partial = True
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
    }
    harmless = ("is_decoder",)
    # It reads `rotary_emb_base` and `rotary_pct`.
    ignored = ("rope_theta", "partial_rotary_factor")
    names = make_names(
        {"embed_in": "token_embd", "final_layer_norm": "output_norm", "embed_out": "output"},
        {
            "input_layernorm": "attn_norm",
            "attention.query_key_value": {"attn_qkv": ungroup_heads},
            "attention.dense": "attn_output",
            "post_attention_layernorm": "ffn_norm",
        },
        MLP,
    )

    def keys(self) -> dict[str, Value]:
        """Return whether attention and feed-forward run in parallel."""
        parallel = self.settings.flag("use_parallel_residual", default=True)
        return {"use_parallel_residual": parallel}


@family("FalconForCausalLM", "RWForCausalLM")
class Falcon(Family):
    """Falcon 7B, 11B, 40B and 180B."""

    architecture = "falcon"
    needed: ClassVar[Mapping[str, object]] = {"apply_residual_connection_post_layernorm": False}
    biases: ClassVar[Mapping[str, str]] = {"bias": r"(query_key_value|dense\w*)\.bias$"}
    prefixes = ("transformer.",)
    left_out = ("attention.layer_norm_rms_epsilon",)
    activation = "gelu_erf"
    activation_settings = ("activation", "hidden_act")
    defaults: ClassVar[Mapping[str, object]] = {
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }
    harmless = ("num_ln_in_parallel_attn",)
    names = make_names(
        {"word_embeddings": "token_embd", "ln_f": "output_norm", "lm_head": "output"},
        {
            "input_layernorm": "attn_norm",
            "ln_mlp": "attn_norm",
            # In GGUF files the second name is that of the norm of attention.
            "ln_attn": "attn_norm_2",
            "self_attention.query_key_value": {"attn_qkv": ungroup_shared},
            "self_attention.dense": "attn_output",
        },
        MLP,
        stack="h",
    )

    def keys(self) -> dict[str, Value]:
        """Return sizes that published files omit.

        Raises
        ------
        ModelError
            It uses ALiBi, or sequential blocks: Falcon RW, another architecture.
        """
        s = self.settings
        if s.flag("alibi", default=False):
            raise s.error("alibi", "is true, needs false: Falcon RW is another architecture")
        if not s.flag("parallel_attn", default=True):
            raise s.error("parallel_attn", "is false, needs true")
        return {
            "context_length": s.uint("max_position_embeddings"),
            # llama.cpp's name for queries, keys and values whose groups have been taken apart.
            "tensor_data_layout": "jploski",
            "feed_forward_length": s.uint("ffn_hidden_size", default=4 * s.uint("hidden_size")),
            "attention.head_count_kv": kv_heads(s),
        }


@family("BloomForCausalLM", "BloomModel")
class Bloom(Family):
    """BLOOM, with ALiBi and a norm after the embedding."""

    architecture = "bloom"
    prefixes = ("transformer.",)
    left_out = ("attention.layer_norm_rms_epsilon", "rope.freq_base")
    activation = None
    defaults: ClassVar[Mapping[str, object]] = {
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    needed: ClassVar[Mapping[str, object]] = {"apply_residual_connection_post_layernorm": False}
    harmless = ("n_inner", "masked_softmax_fusion", "bias_dropout_fusion", "skip_bias_add",
        "skip_bias_add_qkv", "attention_softmax_in_fp32", "offset_alibi", "unk_token_id",
    )  # fmt: skip
    names = make_names(
        {
            "word_embeddings": "token_embd",
            "word_embeddings_layernorm": "token_embd_norm",
            "ln_f": "output_norm",
            "lm_head": "output",
        },
        {
            "input_layernorm": "attn_norm",
            "self_attention.query_key_value": {"attn_qkv": ungroup_heads},
            "self_attention.dense": "attn_output",
            "post_attention_layernorm": "ffn_norm",
        },
        MLP,
        stack="h",
    )

    def keys(self) -> dict[str, Value]:
        """Return sizes that published files omit."""
        s = self.settings
        width, heads = s.uint("hidden_size", "n_embed"), s.uint("num_attention_heads", "n_head")
        return {
            "context_length": s.uint("seq_length", default=2048),
            "embedding_length": width,
            "feed_forward_length": 4 * width,
            "attention.head_count": heads,
            "attention.head_count_kv": heads,
        }
