"""Tiny models with recurrent layers: keys and shapes of each, weights by name and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from tests.builders import add_tokenizer, vocabulary
from tests.models.outlines import narrowed

Shapes = Mapping[str, tuple[int, ...]]
Value = float | str | bool | Sequence[int]
WIDTH, INNER, HEADS, HEAD, FORWARD, EXPERTS = 32, 64, 2, 16, 48, 4
TOKENS = 13


def normed(*names: str, cols: int = WIDTH, bias: bool = False) -> Shapes:
    shapes = {f"{name}.weight": (cols,) for name in names}
    return shapes | ({f"{name}.bias": (cols,) for name in names} if bias else {})


MLP = {
    "ffn_gate.weight": (FORWARD, WIDTH),
    "ffn_up.weight": (FORWARD, WIDTH),
    "ffn_down.weight": (WIDTH, FORWARD),
}
ROUTED = {
    "ffn_gate_inp.weight": (EXPERTS, WIDTH),
    "ffn_gate_exps.weight": (EXPERTS, FORWARD, WIDTH),
    "ffn_up_exps.weight": (EXPERTS, FORWARD, WIDTH),
    "ffn_down_exps.weight": (EXPERTS, WIDTH, FORWARD),
}
SHARED = {name.replace(".weight", "_shexp.weight"): shape for name, shape in MLP.items()}
BIASED = {"exp_probs_b.bias": (EXPERTS,)}
ATTENTION = {
    "attn_q.weight": (HEADS * HEAD, WIDTH),
    "attn_k.weight": (HEAD, WIDTH),
    "attn_v.weight": (HEAD, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * HEAD),
}
QK_NORMS = normed("attn_q_norm", "attn_k_norm", cols=HEAD)
MAMBA = {
    "ssm_in.weight": (2 * INNER, WIDTH),
    "ssm_conv1d.weight": (INNER, 4),
    "ssm_conv1d.bias": (INNER,),
    "ssm_x.weight": (5 + 2 * 8, INNER),
    "ssm_dt.weight": (INNER, 5),
    "ssm_dt.bias": (INNER,),
    "ssm_a": (INNER, 8),
    "ssm_d": (INNER,),
    "ssm_out.weight": (WIDTH, INNER),
}
MAMBA_NORMS = {
    "ssm_dt_norm.weight": (5,),
    "ssm_b_norm.weight": (8,),
    "ssm_c_norm.weight": (8,),
}


def mamba2(groups: int) -> Shapes:
    channels = INNER + 2 * groups * 8
    return {
        "ssm_in.weight": (INNER + channels + 4, WIDTH),
        "ssm_conv1d.weight": (channels, 4),
        "ssm_conv1d.bias": (channels,),
        "ssm_dt.bias": (4,),
        "ssm_a": (4, 1),
        "ssm_d": (4, 1),
        "ssm_norm.weight": (groups, INNER // groups),
        "ssm_out.weight": (WIDTH, INNER),
    }


SHORT_CONV = {
    "shortconv.conv.weight": (WIDTH, 3),
    "shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
    "shortconv.out_proj.weight": (WIDTH, WIDTH),
}
DELTA = {
    "attn_qkv.weight": (2 * 2 * 8 + 4 * 8, WIDTH),
    "attn_gate.weight": (4 * 8, WIDTH),
    "ssm_conv1d.weight": (2 * 2 * 8 + 4 * 8, 4),
    "ssm_dt.bias": (4,),
    "ssm_a": (4,),
    "ssm_norm.weight": (8,),
    "ssm_out.weight": (WIDTH, 4 * 8),
}
GATED = {**ATTENTION, "attn_q.weight": (2 * HEADS * HEAD, WIDTH), **QK_NORMS}
KIMI_DELTA = {
    **{f"ssm_conv1d_{part}.weight": (WIDTH, 1, 4) for part in "qkv"},
    **{f"attn_{part}.weight": (WIDTH, WIDTH) for part in "qkv"},
    "ssm_beta.weight": (HEADS, WIDTH),
    "ssm_a": (HEADS, 1),
    "ssm_dt.bias": (WIDTH,),
    **{f"ssm_{part}_a.weight": (HEAD, WIDTH) for part in "fg"},
    **{f"ssm_{part}_b.weight": (WIDTH, HEAD) for part in "fg"},
    "ssm_norm.weight": (HEAD,),
    "attn_output.weight": (WIDTH, WIDTH),
}
KIMI_LATENT = {
    "attn_q.weight": (HEADS * 12, WIDTH),
    "attn_kv_a_mqa.weight": (24 + 4, WIDTH),
    "attn_kv_a_norm.weight": (24,),
    "attn_k_b.weight": (HEADS, 24, 8),
    "attn_v_b.weight": (HEADS, HEAD, 24),
    "attn_output.weight": (WIDTH, HEADS * HEAD),
}
RWKV = {
    **normed("attn_norm", "attn_norm_2", "time_mix_ln", bias=True),
    **{f"time_mix_{p}.weight": (WIDTH, WIDTH) for p in ("key", "value", "receptance", "output")},
    "channel_mix_key.weight": (FORWARD, WIDTH),
    "channel_mix_value.weight": (WIDTH, FORWARD),
    "channel_mix_lerp_k.weight": (WIDTH,),
}
RWKV6 = {
    **RWKV,
    "time_mix_gate.weight": (WIDTH, WIDTH),
    "time_mix_lerp_x.weight": (WIDTH,),
    "time_mix_lerp_fused.weight": (5, 1, 1, WIDTH),
    "time_mix_w1.weight": (5 * 6, WIDTH),
    "time_mix_w2.weight": (5, WIDTH, 6),
    "time_mix_decay.weight": (WIDTH,),
    "time_mix_decay_w1.weight": (7, WIDTH),
    "time_mix_decay_w2.weight": (WIDTH, 7),
    "time_mix_first.weight": (HEADS, HEAD),
    "channel_mix_receptance.weight": (WIDTH, WIDTH),
    "channel_mix_lerp_r.weight": (WIDTH,),
}


def rwkv7(layer: int) -> Shapes:
    ranks = {"w": 7, "a": 5, "v": 6 if layer else 5, "g": 9}
    low = {f"time_mix_{n}1.weight": (rank, WIDTH) for n, rank in ranks.items()}
    high = {f"time_mix_{n}2.weight": (WIDTH, rank) for n, rank in ranks.items()}
    vectors = [f"{n}0" for n in "wav"] + ["k_k", "k_a", "r_k"]
    return {
        **RWKV,
        **low,
        **high,
        **{f"time_mix_{n}.weight": (WIDTH,) for n in vectors},
        "time_mix_lerp_fused.weight": (6, 1, 1, WIDTH),
    }


@dataclass(frozen=True)
class RecurrentCase:
    """A model of some architecture, and the rows of its logits that are recorded."""

    architecture: str
    keys: Mapping[str, Value]
    layers: Sequence[Shapes]
    norm: str = "output_norm"
    others: Shapes = field(default_factory=dict)
    rows: Sequence[int] = (0, 5, 9, 12)

    @property
    def tokens(self) -> list[int]:
        return np.random.default_rng(7).integers(0, 256, TOKENS).tolist()

    def shapes(self) -> Shapes:
        shapes = {"token_embd.weight": (len(vocabulary()), WIDTH), f"{self.norm}.weight": (WIDTH,)}
        for i, layer in enumerate(self.layers):
            shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        return shapes | {"output.weight": shapes["token_embd.weight"], **self.others}

    def write(self, path: Path, *, narrow: bool = False) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        rng = np.random.default_rng(11)
        common = {
            "block_count": len(self.layers),
            "context_length": 64,
            "embedding_length": WIDTH,
            "vocab_size": len(vocabulary()),
        }
        for key, value in (common | dict(self.keys)).items():
            add(writer, f"{self.architecture}.{key}", value)
        add_tokenizer(writer, "gpt-2")
        for name, shape in self.shapes().items():
            values = weights(rng, name, shape).astype("f4")
            writer.add_tensor(name, narrowed(name, values) if narrow else values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def add(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, list(value))


def weights(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values that make every weight count: norms near 1, decays below 0, mixes between."""
    if name.endswith("ssm_a"):
        return rng.uniform(-2, -0.1, shape)
    if "lerp" in name or name.endswith(("k_k.weight", "k_a.weight")):
        return rng.uniform(0.1, 1, shape)
    if "norm" in name or "_ln." in name:
        return rng.normal(0 if name.endswith("bias") else 1, 0.2, shape)
    matrix = len(shape) > 1 and name != "token_embd.weight"
    return rng.standard_normal(shape) * (shape[-1] ** -0.5 if matrix else 0.7)


RMS = {"attention.layer_norm_rms_epsilon": 2e-3}
SSM = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": INNER,
    "ssm.state_size": 8,
    "ssm.time_step_rank": 5,
}
SSM2 = {**SSM, "ssm.time_step_rank": 4}
EACH_HEAD = {"attention.key_length": HEAD, "attention.value_length": HEAD}
CHOICE = {
    "expert_count": EXPERTS,
    "expert_used_count": 2,
    "expert_feed_forward_length": FORWARD,
    "expert_shared_feed_forward_length": FORWARD,
}
NONE = {"feed_forward_length": 0, "attention.head_count": 0}
LAST = {"feed_forward_length": FORWARD, "attention.head_count": HEADS}  # attends in the last layer
DELTAS = {
    **RMS,
    **LAST,
    **EACH_HEAD,
    "attention.head_count_kv": 1,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4 * 8,
    "ssm.state_size": 8,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "full_attention_interval": 2,
    "rope.dimension_count": 8,
}
NORM = normed("attn_norm")
NORMS = normed("attn_norm", "ffn_norm")
POST = normed("attn_norm", "post_attention_norm")
EMBEDDING = {f"token_embd_norm.{part}": (WIDTH,) for part in ("weight", "bias")}
EMBEDDING |= {"output_norm.bias": (WIDTH,)}
RELU2 = {n: s for n, s in {**ROUTED, **SHARED}.items() if not n.startswith("ffn_gate_e")}
del RELU2["ffn_gate_shexp.weight"]


def recurrent() -> dict[str, RecurrentCase]:
    """Every architecture with recurrent layers, by name."""
    return {
        "mamba": RecurrentCase("mamba", {**RMS, **NONE, **SSM}, [{**NORM, **MAMBA}] * 2),
        "falcon-mamba": RecurrentCase(
            "mamba", {**RMS, **NONE, **SSM, "ssm.dt_b_c_rms": True}, [{**NORM, **MAMBA}] * 2
        ),
        "mamba2": RecurrentCase(
            "mamba2",
            {**RMS, **NONE, **SSM2, "ssm.group_count": 2},
            [{**NORM, **mamba2(2)}] * 2,
        ),
        "lfm2moe": RecurrentCase(
            "lfm2moe",
            {
                **RMS,
                **LAST,
                **CHOICE,
                "attention.head_count_kv": [0, 1],
                "shortconv.l_cache": 3,
                "leading_dense_block_count": 1,
                "expert_gating_func": 2,
            },
            [
                {**NORMS, **SHORT_CONV, **MLP},
                {**NORMS, **ATTENTION, **QK_NORMS, **ROUTED, **BIASED},
            ],
            norm="token_embd_norm",
        ),
        "falcon-h1": RecurrentCase(
            "falcon-h1",
            {
                **RMS,
                **LAST,
                **EACH_HEAD,
                **SSM2,
                "attention.head_count_kv": 1,
                "ssm.group_count": 1,
            },
            [{**NORM, "ffn_norm": (WIDTH,), **ATTENTION, **mamba2(1), **MLP}] * 2,
        ),
        "jamba": RecurrentCase(
            "jamba",
            {**RMS, **LAST, **SSM, "attention.head_count_kv": [0, 1], "expert_count": EXPERTS}
            | {"expert_used_count": 2},
            [{**NORMS, **MAMBA, **MAMBA_NORMS, **MLP}, {**NORMS, **ATTENTION, **ROUTED}],
        ),
        "granitehybrid": RecurrentCase(
            "granitehybrid",
            {**RMS, **LAST, **CHOICE, **SSM2, "attention.head_count_kv": [0, 1]}
            | {"ssm.group_count": 1, "rope.scaling.finetuned": True, "attention.scale": 0.2}
            | {"embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 2.0},
            [{**NORMS, **mix, **ROUTED, **SHARED} for mix in (mamba2(1), ATTENTION)],
        ),
        "nemotron_h_moe": RecurrentCase(
            "nemotron_h_moe",
            {**RMS, **EACH_HEAD, **CHOICE, **SSM2, "attention.head_count": HEADS}
            | {"attention.head_count_kv": [0, 1, 0], "feed_forward_length": [0, 0, FORWARD]}
            | {"ssm.group_count": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5}
            | {"expert_shared_count": 1, "attention.layer_norm_epsilon": 2e-3},
            [{**NORM, **part} for part in (mamba2(2), ATTENTION, {**RELU2, **BIASED})],
        ),
        "qwen3next": RecurrentCase(
            "qwen3next",
            {**DELTAS, **CHOICE},
            [
                {**POST, **mix, **ROUTED, **SHARED, "ffn_gate_inp_shexp.weight": (1, WIDTH)}
                for mix in ({**DELTA, "ssm_ba.weight": (8, WIDTH)}, GATED)
            ],
        ),
        "qwen35": RecurrentCase(
            "qwen35",
            {**DELTAS, "rope.dimension_sections": [2, 1, 1, 0]},
            [
                {**POST, **mix, **MLP}
                for mix in (
                    {**DELTA, "ssm_alpha.weight": (4, WIDTH), "ssm_beta.weight": (4, WIDTH)},
                    GATED,
                )
            ],
        ),
        "kimi-linear": RecurrentCase(
            "kimi-linear",
            {**RMS, **LAST, "attention.head_count_kv": [0, 1], "ssm.conv_kernel": 4}
            | {"kda.head_dim": HEAD, "attention.kv_lora_rank": 24, "rope.dimension_count": 4}
            | {"attention.key_length_mla": 12, "attention.value_length_mla": HEAD}
            | {"attention.key_length": 28, "attention.value_length": 24}
            | {"leading_dense_block_count": 1, "expert_count": EXPERTS, "expert_used_count": 2}
            | {"expert_feed_forward_length": FORWARD, "expert_shared_count": 1}
            | {"expert_gating_func": 2, "expert_weights_scale": 1.5},
            [
                {**NORMS, **KIMI_DELTA, **MLP},
                {**NORMS, **KIMI_LATENT, **ROUTED, **SHARED, **BIASED},
            ],
        ),
        "rwkv6": RecurrentCase(
            "rwkv6",
            {"attention.layer_norm_epsilon": 2e-3, "attention.head_count": 0}
            | {"wkv.head_size": HEAD, "time_mix_extra_dim": 6, "time_decay_extra_dim": 7}
            | {"feed_forward_length": FORWARD, "rescale_every_n_layers": 2},
            [RWKV6] * 2,
            others=EMBEDDING,
        ),
        "rwkv7": RecurrentCase(
            # One head of 32: ggml's CPU leaves out what is not a whole 32 of its vectors.
            "rwkv7",
            {"attention.layer_norm_epsilon": 2e-3, "attention.head_count": 0}
            | {"wkv.head_size": WIDTH, "feed_forward_length": FORWARD}
            | {"attention.decay_lora_rank": 7, "attention.iclr_lora_rank": 5}
            | {"attention.value_residual_mix_lora_rank": 6, "attention.gate_lora_rank": 9},
            [rwkv7(0), rwkv7(1)],
            others=EMBEDDING,
        ),
    }
