"""Qwen 2 and 3, dense and with experts."""

from __future__ import annotations

from wgpu_backend.config import Value
from wgpu_backend.folders.families.llama import ATTENTION, ENDS, EXPERTS, MLP, Decoder
from wgpu_backend.folders.family import family, named


@family("Qwen2ForCausalLM", "Qwen2Model")
class Qwen2(Decoder):
    """Biases of queries, keys and values."""

    architecture = "qwen2"


@family("Qwen3ForCausalLM", "Qwen3Model")
class Qwen3(Decoder):
    """Norms of queries and keys."""

    architecture = "qwen3"


@family("Qwen2MoeForCausalLM")
class Qwen2Moe(Decoder):
    """Experts, and one that all tokens share, with a gate."""

    architecture = "qwen2moe"
    names = named(
        ENDS,
        ATTENTION,
        MLP,
        EXPERTS,
        {
            "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
            "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
            "mlp.shared_expert.up_proj": "ffn_up_shexp",
            "mlp.shared_expert.down_proj": "ffn_down_shexp",
        },
    )

    def keys(self) -> dict[str, Value]:
        """Widths of the experts."""
        s = self.settings
        return {key: s.uint(name) for key, name in _WIDTHS.items() if name in s}


_WIDTHS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}


@family("Qwen3MoeForCausalLM")
class Qwen3Moe(Qwen2Moe):
    """No shared expert; norms of queries and keys."""

    architecture = "qwen3moe"
