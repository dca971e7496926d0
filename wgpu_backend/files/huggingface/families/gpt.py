"""GPT-2, StarCoder and gpt-oss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.dtypes import MXFP4
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import ATTENTION, ENDS
from wgpu_backend.files.huggingface.family import Family, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import find_sliding, layer_count
from wgpu_backend.files.huggingface.transforms import take_every_other, transpose
from wgpu_backend.files.huggingface.values import Values


def transpose_matrix(x: Values, settings: Settings) -> Values:
    """Transpose GPT-2's matrices, which are stored for multiplication from the right."""
    return x if x.cols == 1 else transpose(x)


@family("GPT2LMHeadModel")
class Gpt2(Family):
    """GPT-2, whose matrices are stored as in ``Conv1D``."""

    architecture = "gpt2"
    prefixes = ("transformer.",)
    activation = "gelu"
    activation_settings = ("activation_function",)
    defaults: ClassVar[Mapping[str, object]] = {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    needed: ClassVar[Mapping[str, object]] = {"add_cross_attention": False}
    names = make_names(
        {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output"},
        {
            "ln_1": "attn_norm",
            "attn.c_attn": {"attn_qkv": transpose_matrix},
            "attn.c_proj": {"attn_output": transpose_matrix},
            "ln_2": "ffn_norm",
            "mlp.c_fc": {"ffn_up": transpose_matrix},
            "mlp.c_proj": {"ffn_down": transpose_matrix},
        },
        stack="h",
    )

    def keys(self) -> dict[str, Value]:
        """Return the inner width, which published files omit, and factors of scores."""
        s = self.settings
        inner = s.uint("n_inner", default=4 * s.uint("n_embd", "hidden_size"))
        return {"feed_forward_length": inner, **self._scales()}

    def _scales(self) -> dict[str, Value]:
        s, count = self.settings, layer_count(self.settings)
        scaled = s.flag("scale_attn_weights", default=True)
        by_layer = s.flag("scale_attn_by_inverse_layer_idx", default=False)
        if scaled and not by_layer:
            return {}
        heads = s.uint("n_head", "num_attention_heads") or 1
        size = s.uint("n_embd", "hidden_size") // heads
        # A layer's factor is divided by its number, counted from one.
        scales = np.full(count, size**-0.5 if scaled else 1.0, np.float32)
        return {"attention.scale": scales / np.arange(1, count + 1) if by_layer else scales}


@family("GPTBigCodeForCausalLM")
class StarCoder(Gpt2):
    """GPT-2 with one key for all heads, and matrices stored as in other models."""

    architecture = "starcoder"
    defaults: ClassVar[Mapping[str, object]] = {
        **Gpt2.defaults,
        "activation_function": "gelu_pytorch_tanh",
    }
    names = make_names(
        {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output"},
        {
            "ln_1": "attn_norm",
            "attn.c_attn": "attn_qkv",
            "attn.c_proj": "attn_output",
            "ln_2": "ffn_norm",
            "mlp.c_fc": "ffn_up",
            "mlp.c_proj": "ffn_down",
        },
        stack="h",
    )

    def keys(self) -> dict[str, Value]:
        """Return GPT-2's keys, and the number of key heads.

        Raises
        ------
        ModelError
            Each head has its own key, with interleaved rows.
        """
        if not self.settings.flag("multi_query", default=True):
            raise self.settings.error("multi_query", "is false, needs true")
        return {**super().keys(), "attention.head_count_kv": 1}


def gates(x: Values, settings: Settings) -> Values:
    """Return the even rows of a tensor, which are gates."""
    return take_every_other(_outputs_first(x), 0)


def ups(x: Values, settings: Settings) -> Values:
    """Return the odd rows of a tensor, which the gates multiply."""
    return take_every_other(_outputs_first(x), 1)


def downs(x: Values, settings: Settings) -> Values:
    """Return the matrices that project back to the model's width."""
    return _outputs_first(x)


def _outputs_first(x: Values) -> Values:
    """Transpose matrices of floats; packed ones and biases stay."""
    return x if x.dtype == MXFP4 or x.cols == 1 else transpose(x)


@family("GptOssForCausalLM")
class GptOss(Family):
    """gpt-oss, with experts in one tensor, packed or not."""

    architecture = "gpt-oss"
    activation = None
    harmless = ("hidden_act", "experts_per_token", "initial_context_length")
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "head_dim": 64,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    }
    default_rope: ClassVar[Mapping[str, object]] = {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
    names = make_names(
        ENDS,
        ATTENTION,
        {
            "self_attn.sinks": "attn_sinks",
            "post_attention_layernorm": "post_attention_norm",
            "mlp.router": "ffn_gate_inp",
            "mlp.experts.gate_up_proj": {"ffn_gate_exps": gates, "ffn_up_exps": ups},
            "mlp.experts.down_proj": {"ffn_down_exps": downs},
        },
    )

    def keys(self) -> dict[str, Value]:
        """Return the width of an expert, and the bounds of its activation."""
        s = self.settings
        # The published values are the model's own, so a file that has them needs no keys.
        made: dict[str, Value] = {"expert_feed_forward_length": s.uint("intermediate_size")}
        for name, usual in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
            if s.number(name) != usual:
                made[name] = s.number(name)
        return made

    def slides(self) -> list[bool]:
        """Return the layers with a window: each second from the first on, unless listed."""
        return find_sliding(self.settings, lambda i: i % 2 == 0)
