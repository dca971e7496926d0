"""GPT-2, StarCoder and gpt-oss."""

from __future__ import annotations

from wgpu_backend.config import Value
from wgpu_backend.dtypes import MXFP4
from wgpu_backend.folders.arrangements import every_other, transposed
from wgpu_backend.folders.families.llama import ATTENTION, ENDS
from wgpu_backend.folders.family import Family, family, named
from wgpu_backend.folders.settings import Settings
from wgpu_backend.folders.values import Values


def turned(x: Values, settings: Settings) -> Values:
    """GPT-2's matrices are as multiplied from the right; biases are none."""
    return x if x.cols == 1 else transposed(x)


@family("GPT2LMHeadModel")
class Gpt2(Family):
    """Matrices as ``Conv1D`` has them."""

    architecture = "gpt2"
    prefixes = ("transformer.",)
    useless = r"^lm_head\.weight$"  # the embedding
    names = named(
        {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"},
        {
            "ln_1": "attn_norm",
            "attn.c_attn": {"attn_qkv": turned},
            "attn.c_proj": {"attn_output": turned},
            "ln_2": "ffn_norm",
            "mlp.c_fc": {"ffn_up": turned},
            "mlp.c_proj": {"ffn_down": turned},
        },
        stack="h",
    )

    def keys(self) -> dict[str, Value]:
        """The width inside, which published files leave out."""
        s = self.settings
        return {"feed_forward_length": s.uint("n_inner", default=4 * s.uint("n_embd"))}


@family("GPTBigCodeForCausalLM")
class StarCoder(Gpt2):
    """GPT-2 with one key for all heads; matrices as others have them."""

    architecture = "starcoder"
    names = named(
        {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"},
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
        """GPT-2's, and how many keys there are.

        Raises
        ------
        ModelError
            Each head has a key, and the rows of a head's three lie together.
        """
        if not self.settings.flag("multi_query", default=True):
            raise self.settings.error("multi_query", "is false, needs true")
        return {**super().keys(), "attention.head_count_kv": 1}


def gates(x: Values, settings: Settings) -> Values:
    """Even rows are gates."""
    return every_other(_outputs_first(x), 0)


def ups(x: Values, settings: Settings) -> Values:
    """Odd rows are what the gates are for."""
    return every_other(_outputs_first(x), 1)


def downs(x: Values, settings: Settings) -> Values:
    """Matrices back to the width of the model."""
    return _outputs_first(x)


def _outputs_first(x: Values) -> Values:
    """Matrices of floats are as multiplied from the right, packed ones are not, biases are none."""
    return x if x.dtype == MXFP4 or x.cols == 1 else transposed(x)


@family("GptOssForCausalLM")
class GptOss(Family):
    """Experts in one tensor, packed or not."""

    architecture = "gpt-oss"
    names = named(
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
        """The window, and the width of an expert."""
        s = self.settings
        return {
            "attention.sliding_window": s.uint("sliding_window"),
            "expert_feed_forward_length": s.uint("intermediate_size"),
        }
