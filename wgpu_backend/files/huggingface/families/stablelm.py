"""StableLM and Nemotron: Llama's layers with layer norms, and a part of each head rotated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import ATTENTION, ENDS, MLP, Decoder
from wgpu_backend.files.huggingface.family import Names, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.values import Values, plus


def one_more(x: Values, settings: Settings) -> Values:
    """Add 1 to the weights of a norm; biases stay."""
    # `Family._apply` passes a bias as a column.
    return x if x.cols == 1 else plus(x, 1.0)


NORMS: Names = {
    "input_layernorm": {"attn_norm": one_more},
    "post_attention_layernorm": {"ffn_norm": one_more},
}


@family("StableLmForCausalLM", "StableLMEpochForCausalLM")
class StableLm(Decoder):
    """StableLM, whose largest model normalises each head of queries and keys separately."""

    architecture = "stablelm"
    biases: ClassVar[Mapping[str, str]] = {"use_qkv_bias": r"[qkv]_proj\.bias$"}
    left_out = ("attention.layer_norm_rms_epsilon",)
    is_partial = True
    harmless = ("rotary_scaling_factor", "qk_layernorm")
    defaults: ClassVar[Mapping[str, object]] = {"partial_rotary_factor": 0.25}
    names = make_names(
        ENDS,
        ATTENTION,
        MLP,
        {
            "self_attn.q_layernorm": "attn_q_norm",
            "self_attn.k_layernorm": "attn_k_norm",
            "self_attn.q_layernorm.norms.*": "attn_q_norm",
            "self_attn.k_layernorm.norms.*": "attn_k_norm",
        },
    )

    def keys(self) -> dict[str, Value]:
        """Return the epsilon, which some files name like that of an RMS norm."""
        s = self.settings
        return {
            "use_parallel_residual": s.flag("use_parallel_residual", default=False),
            "attention.layer_norm_epsilon": s.number("layer_norm_eps", "norm_eps", default=1e-5),
        }


@family("NemotronForCausalLM")
class Nemotron(Decoder):
    """Nemotron, whose norms multiply by one more than the weight."""

    architecture = "nemotron"
    activation = "relu2"
    is_partial = True
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_act": "relu2",
        "partial_rotary_factor": 0.5,
    }
    names = make_names({**ENDS, "norm": {"output_norm": one_more}}, ATTENTION, MLP, NORMS)

    def keys(self) -> dict[str, Value]:
        """Return the epsilon of layer norms."""
        s = self.settings
        return {
            "vocab_size": s.uint("vocab_size"),
            "attention.layer_norm_epsilon": s.number("norm_eps", "layer_norm_eps", default=1e-5),
        }
