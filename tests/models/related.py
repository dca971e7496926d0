"""Outlines of models that `tiny_models.py` does not make, derived from related ones.

`tests/data/make_zoo.py` takes them too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Outline = dict[str, Any]
Outlines = Mapping[str, Outline]
WIDTH, INNER, EXPERTS, EXPERT_INNER = 64, 96, 8, 32
MOE = {"expert_count": EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": EXPERT_INNER}


def renamed(outline: Outline, architecture: str, **keys: Any) -> Outline:
    """Outline of another architecture, with further keys, ``__`` for a dot."""
    before = outline["architecture"]
    own = {k.replace(f"{before}.", f"{architecture}.", 1): v for k, v in outline["keys"].items()}
    own |= {f"{architecture}.{k.replace('__', '.')}": v for k, v in keys.items()}
    return {
        "architecture": architecture,
        "keys": own,
        "weights": copy.deepcopy(outline["weights"]),
    }


def without(outline: Outline, *parts: str) -> Outline:
    """Outline without the weights whose names have one of these parts."""
    weights = {n: s for n, s in outline["weights"].items() if not any(p in n for p in parts)}
    return {**outline, "weights": weights}


def with_experts(outline: Outline, layer: int, inner: int, *, gated: bool) -> Outline:
    """Outline with experts in place of a layer's feed-forward network."""
    found = without(outline, *(f"blk.{layer}.ffn_{part}." for part in ("gate", "up", "down")))
    shapes = {"ffn_gate_inp": [EXPERTS, WIDTH], "ffn_down_exps": [EXPERTS, WIDTH, inner]}
    for part in ("ffn_gate_exps", "ffn_up_exps")[0 if gated else 1 :]:
        shapes[part] = [EXPERTS, inner, WIDTH]
    found["weights"] |= {f"blk.{layer}.{name}.weight": shape for name, shape in shapes.items()}
    return found


def nomic_bert_moe(outlines: Outlines) -> Outline:
    keys = {"moe_every_n_layers": 2, "rope__freq_base": 1000.0, **MOE}
    del keys["expert_feed_forward_length"]
    found = without(renamed(outlines["bert"], "nomic-bert-moe", **keys), "position_embd")
    return with_experts(found, 1, INNER, gated=False)


def jina_bert_v3(outlines: Outlines) -> Outline:
    keys = {"rope__freq_base": 20000.0}
    return without(renamed(outlines["bert"], "jina-bert-v3", **keys), "position_embd")


def neo_bert(outlines: Outlines) -> Outline:
    keys = {"attention__layer_norm_rms_epsilon": 1e-3, "rope__freq_base": 10000.0}
    found = renamed(outlines["eurobert"], "neo-bert", **keys, attention__head_count_kv=4)
    found = without(found, "attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "output_norm")
    for layer in range(2):
        found["weights"][f"blk.{layer}.attn_qkv.weight"] = [3 * WIDTH, WIDTH]
        found["weights"][f"blk.{layer}.ffn_up.weight"] = [2 * INNER, WIDTH]
    found["weights"]["enc.output_norm.weight"] = [WIDTH]
    return found


def llama_embed(outlines: Outlines) -> Outline:
    found = renamed(outlines["llama"], "llama-embed", attention__causal=False)
    del found["weights"]["output.weight"]
    return found


def qwen2vl(outlines: Outlines) -> Outline:
    # llama.cpp reads no epsilon of this architecture and takes 0.
    keys = {"rope__dimension_sections": [2, 3, 3, 0], "attention__layer_norm_rms_epsilon": 1e-6}
    found = renamed(outlines["llama"], "qwen2vl", **keys)
    for layer in range(2):
        rows = {"attn_q": WIDTH, "attn_k": WIDTH // 2, "attn_v": WIDTH // 2}
        found["weights"] |= {f"blk.{layer}.{name}.bias": [n] for name, n in rows.items()}
    return found


def qwen3vl(outlines: Outlines) -> Outline:
    # Sections that leave no pair over: llama.cpp does not turn those by text, transformers does.
    keys = {"rope__dimension_sections": [11, 11, 10, 0], "n_deepstack_layers": 1}
    return renamed(outlines["qwen3"], "qwen3vl", **keys)


def qwen3vlmoe(outlines: Outlines) -> Outline:
    found = renamed(qwen3vl(outlines), "qwen3vlmoe", **MOE)
    for layer in range(2):
        found = with_experts(found, layer, EXPERT_INNER, gated=True)
    return found


def given_to(outline: Outline, tokens: int) -> dict[str, np.ndarray]:
    """Embeddings for all tokens, and where these stand in time, height and width."""
    rng = np.random.default_rng(7)
    deeper = outline["keys"].get(f"{outline['architecture']}.n_deepstack_layers", 0)
    places = np.stack([np.arange(tokens), *rng.integers(0, 40, (2, tokens))], axis=1)
    embeddings = rng.standard_normal((tokens, (1 + deeper) * WIDTH), np.float32)
    return {"embeddings": embeddings, "rope_positions": places.astype(np.int32)}


def t5(outlines: Outlines) -> Outline:
    found = renamed(outlines["t5encoder"], "t5", decoder_block_count=2, decoder_start_token_id=2)
    weights = found["weights"]
    enc = {n: s for n, s in weights.items() if n.startswith("enc.blk.1.")}
    for name, shape in enc.items():
        for layer in range(2):
            own = name.replace("enc.blk.1.", f"dec.blk.{layer}.")
            weights[own] = shape
            if ".attn_" in own:
                weights[own.replace(".attn_", ".cross_attn_")] = shape
    weights |= {"dec.blk.0.attn_rel_b.weight": [32, 4], "dec.output_norm.weight": [WIDTH]}
    weights["output.weight"] = [270, WIDTH]
    return found


def modern_reranker(outlines: Outlines) -> Outline:
    found = renamed(outlines["modern-bert"], "modern-bert", classifier__pooling_type=1)
    found["weights"] |= {"cls.weight": [WIDTH, WIDTH], "cls.norm.weight": [WIDTH]}
    found["weights"] |= {"cls.output.weight": [1, WIDTH], "cls.output.bias": [1]}
    return found


def qwen3_reranker(outlines: Outlines) -> Outline:
    keys = {"pooling_type": 4, "classifier__output_labels": ["yes", "no"]}
    found = renamed(outlines["qwen3"], "qwen3", **keys)
    found["weights"]["cls.output.weight"] = [2, WIDTH]
    return found


def embeddinggemma(outlines: Outlines) -> Outline:
    keys = {"dense_2_feat_in": WIDTH, "dense_2_feat_out": 128}
    keys |= {"dense_3_feat_in": 128, "dense_3_feat_out": WIDTH}
    found = renamed(outlines["gemma-embedding"], "gemma-embedding", **keys, pooling_type=1)
    found["weights"] |= {"dense_2.weight": [128, WIDTH], "dense_3.weight": [WIDTH, 128]}
    return found


def exaone(outlines: Outlines) -> Outline:
    found = renamed(outlines["llama"], "exaone")
    found["weights"]["rope_freqs.weight"] = [8]
    return found


def pangu_embedded(outlines: Outlines) -> Outline:
    found = renamed(outlines["llama"], "pangu-embedded")
    rows = {"attn_q": WIDTH, "attn_k": WIDTH // 2, "attn_v": WIDTH // 2, "attn_output": WIDTH}
    for layer in range(2):
        found["weights"] |= {f"blk.{layer}.{name}.bias": [n] for name, n in rows.items()}
    return found


def maincoder(outlines: Outlines) -> Outline:
    found = renamed(outlines["llama"], "maincoder")
    for layer in range(2):
        found["weights"] |= {f"blk.{layer}.attn_{part}_norm.weight": [16] for part in "qk"}
    return found


def orion(outlines: Outlines) -> Outline:
    found = renamed(outlines["llama"], "orion", attention__layer_norm_epsilon=2e-3)
    norms = [name for name in found["weights"] if "norm" in name]
    found["weights"] |= {name.replace("weight", "bias"): [WIDTH] for name in norms}
    return found


def with_shared_expert(outline: Outline, layer: int, inner: int) -> Outline:
    shapes = {"ffn_gate_shexp": [inner, WIDTH], "ffn_up_shexp": [inner, WIDTH]}
    shapes |= {"ffn_down_shexp": [WIDTH, inner]}
    added = {f"blk.{layer}.{name}.weight": shape for name, shape in shapes.items()}
    return {**outline, "weights": outline["weights"] | added}


def deepseek(outlines: Outlines) -> Outline:
    keys = {"leading_dense_block_count": 1, "expert_shared_count": 2, "expert_weights_scale": 1.5}
    found = renamed(outlines["llama"], "deepseek", **keys, **MOE)
    found = with_experts(found, 1, EXPERT_INNER, gated=True)
    return with_shared_expert(found, 1, 2 * EXPERT_INNER)


def bailingmoe(outlines: Outlines) -> Outline:
    keys = {"leading_dense_block_count": 0, "expert_shared_count": 2}
    keys |= {"expert_weights_scale": 1.0, "expert_weights_norm": True}
    found = renamed(outlines["llama"], "bailingmoe", **keys, **MOE)
    for layer in range(2):
        found = with_experts(found, layer, EXPERT_INNER, gated=True)
        found = with_shared_expert(found, layer, 2 * EXPERT_INNER)
    return found


def bailingmoe2(outlines: Outlines) -> Outline:
    keys = {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_gating_func": 2}
    keys |= {"expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_group_count": 4}
    keys |= {"expert_group_used_count": 2, "rope__dimension_count": 8}
    keys |= {"expert_shared_feed_forward_length": EXPERT_INNER}
    found = renamed(outlines["llama"], "bailingmoe2", **keys, **MOE)
    found = without(found, "attn_q", "attn_k", "attn_v")
    for layer in range(2):
        found["weights"][f"blk.{layer}.attn_qkv.weight"] = [2 * WIDTH, WIDTH]
        found["weights"] |= {f"blk.{layer}.attn_{part}_norm.weight": [16] for part in "qk"}
    found = with_experts(found, 1, EXPERT_INNER, gated=True)
    found["weights"]["blk.1.exp_probs_b.bias"] = [EXPERTS]
    return with_shared_expert(found, 1, EXPERT_INNER)


def deeper(outline: Outline, layers: int) -> Outline:
    """Outline with more layers, each as the first one."""
    first = {n: s for n, s in outline["weights"].items() if n.startswith("blk.0.")}
    weights = {n: s for n, s in outline["weights"].items() if not n.startswith("blk.")}
    for name, shape in first.items():
        weights |= {name.replace("blk.0.", f"blk.{i}."): shape for i in range(layers)}
    keys = outline["keys"] | {f"{outline['architecture']}.block_count": layers}
    return {**outline, "keys": keys, "weights": weights}


def smallthinker(outlines: Outlines) -> Outline:
    # llama.cpp takes this window whatever the file says.
    keys = {"attention__sliding_window": 4096, "expert_gating_func": 2, **MOE}
    found = deeper(renamed(outlines["llama"], "smallthinker", **keys), 5)
    for layer in range(5):
        found = with_experts(found, layer, EXPERT_INNER, gated=True)
    return found


def smallthinker_without_windows(outlines: Outlines) -> Outline:
    found = smallthinker(outlines)
    del found["keys"]["smallthinker.attention.sliding_window"]
    found["keys"]["smallthinker.expert_gating_func"] = 1
    return found


def deci(outlines: Outlines) -> Outline:
    keys = {"attention__head_count": [4, 4, 0, 2], "attention__head_count_kv": [2, 0, 0, 2]}
    keys |= {"feed_forward_length": [INNER, INNER, 64, 32]}
    found = deeper(renamed(outlines["llama"], "deci", **keys), 4)
    parts = {1: ("attn_q", "attn_k", "attn_v"), 2: ("attn_q", "attn_k", "attn_v", "attn_")}
    for layer, names in parts.items():
        found = without(found, *(f"blk.{layer}.{name}" for name in names))
    for layer, inner in ((2, 64), (3, 32)):
        found["weights"] |= {
            f"blk.{layer}.ffn_gate.weight": [inner, WIDTH],
            f"blk.{layer}.ffn_up.weight": [inner, WIDTH],
            f"blk.{layer}.ffn_down.weight": [WIDTH, inner],
        }
    found["weights"] |= {
        "blk.3.attn_q.weight": [32, WIDTH],
        "blk.3.attn_output.weight": [WIDTH, 32],
        "rope_freqs.weight": [8],
    }
    return found


def spark(outlines: Outlines) -> Outline:
    keys = {"attention__sliding_window": 8, "rope__freq_base_swa": 500.0}
    keys |= {"attention__sliding_window_pattern": [True, False, True]}
    keys |= {"attention__head_count": [4, 4, 2], "attention__head_count_kv": [2, 2, 2]}
    keys |= {"rope__dimension_count": 8, "rope__dimension_count_swa": 16}
    found = deeper(renamed(outlines["llama"], "spark2_5", **keys), 3)
    found["weights"] |= {f"blk.{i}.attn_gate.weight": [4, WIDTH] for i in range(2)}
    found["weights"] |= {
        "blk.2.attn_gate.weight": [2, WIDTH],
        "blk.2.attn_q.weight": [32, WIDTH],
        "blk.2.attn_output.weight": [WIDTH, 32],
    }
    return found


def glimmer(outlines: Outlines) -> Outline:
    keys = {"attention__sliding_window": 8, "rope__freq_base_swa": 500.0, "logit_scale": 0.5}
    keys |= {"attention__sliding_window_pattern": [True, True, True, False]}
    keys |= {"final_logit_softcapping": 6.0}
    found = deeper(renamed(outlines["llama"], "muse-glimmer", **keys), 4)
    for layer in range(4):
        found["weights"] |= {f"blk.{layer}.attn_{part}_norm.weight": [16] for part in "qk"}
        found["weights"][f"blk.{layer}.attn_gate.weight"] = [WIDTH, WIDTH]
        for name in ("post_attention_norm", "post_ffw_norm"):
            found["weights"][f"blk.{layer}.{name}.weight"] = [WIDTH]
    return found


def codeshell(outlines: Outlines) -> Outline:
    found = without(orion(outlines), "ffn_gate")
    found = renamed(found, "codeshell")
    rows = {"attn_q": WIDTH, "attn_k": WIDTH // 2, "attn_v": WIDTH // 2, "attn_output": WIDTH}
    rows |= {"ffn_up": INNER, "ffn_down": WIDTH}
    for layer in range(2):
        found["weights"] |= {f"blk.{layer}.{name}.bias": [n] for name, n in rows.items()}
    return found


def baichuan(outlines: Outlines, layers: int) -> Outline:
    # llama.cpp knows the two models by their layers.
    found = renamed(outlines["llama"], "baichuan", block_count=layers)
    first = {n: s for n, s in found["weights"].items() if n.startswith("blk.0.")}
    rest = {n: s for n, s in found["weights"].items() if not n.startswith("blk.")}
    found["weights"] = rest | {n.replace("blk.0.", "blk.*."): s for n, s in first.items()}
    return found


def openelm(outlines: Outlines) -> Outline:
    keys = {"attention__head_count": [2, 4], "attention__head_count_kv": [1, 2]}
    found = renamed(outlines["llama"], "openelm", **keys, feed_forward_length=[64, INNER])
    found = without(found, "attn_q", "attn_k", "attn_v", "attn_output", "blk.0.ffn_", "output.w")
    for layer, heads in enumerate((2, 4)):
        found["weights"] |= {
            f"blk.{layer}.attn_qkv.weight": [32 * heads, WIDTH],
            f"blk.{layer}.attn_output.weight": [WIDTH, 16 * heads],
            f"blk.{layer}.attn_q_norm.weight": [16],
            f"blk.{layer}.attn_k_norm.weight": [16],
        }
    found["weights"] |= {
        "blk.0.ffn_norm.weight": [WIDTH],
        "blk.0.ffn_gate.weight": [64, WIDTH],
        "blk.0.ffn_up.weight": [64, WIDTH],
        "blk.0.ffn_down.weight": [WIDTH, 64],
    }
    return found


def arctic(outlines: Outlines) -> Outline:
    keys = {"expert_count": EXPERTS, "expert_used_count": 2}
    found = renamed(outlines["llama"], "arctic", **keys)
    for layer in range(2):
        found = with_experts(found, layer, INNER, gated=True)
        shapes = {f"ffn_{part}": [WIDTH, WIDTH] for part in ("gate", "up", "down")}
        shapes |= {"ffn_norm_exps": [WIDTH]}
        found["weights"] |= {f"blk.{layer}.{name}.weight": s for name, s in shapes.items()}
    return found


def plm(outlines: Outlines) -> Outline:
    keys = {"attention__kv_lora_rank": 32, "attention__key_length": 24, "rope__dimension_count": 8}
    found = renamed(outlines["llama"], "plm", **keys, attention__head_count_kv=4)
    found = without(found, "attn_k", "attn_v", "ffn_gate", "output.w")
    for layer in range(2):
        shapes = {"attn_q": [96, WIDTH], "attn_kv_a_mqa": [40, WIDTH], "attn_kv_a_norm": [32]}
        shapes |= {"attn_kv_b": [4 * (16 + 16), 32]}
        shapes |= {"attn_output": [WIDTH, WIDTH]}
        found["weights"] |= {f"blk.{layer}.{name}.weight": s for name, s in shapes.items()}
    return found


RELATED: Mapping[str, Callable[[Outlines], Outline]] = {
    "nomic-bert-moe": nomic_bert_moe,
    "jina-bert-v3": jina_bert_v3,
    "neo-bert": neo_bert,
    "llama-embed": llama_embed,
    "qwen2vl": qwen2vl,
    "qwen3vl": qwen3vl,
    "qwen3vlmoe": qwen3vlmoe,
    "t5": t5,
    "exaone": exaone,
    "pangu-embedded": pangu_embedded,
    "xverse": lambda outlines: renamed(outlines["llama"], "xverse"),
    "maincoder": maincoder,
    "orion": orion,
    "deepseek": deepseek,
    "bailingmoe": bailingmoe,
    "bailingmoe2": bailingmoe2,
    "smallthinker": smallthinker,
    "smallthinker-without-windows": smallthinker_without_windows,
    "deci": deci,
    "spark2_5": spark,
    "muse-glimmer": glimmer,
    "codeshell": codeshell,
    "refact": lambda outlines: renamed(outlines["llama"], "refact"),
    "baichuan": lambda outlines: baichuan(outlines, 32),
    "baichuan-13b": lambda outlines: baichuan(outlines, 40),
    "openelm": openelm,
    "arctic": arctic,
    "plm": plm,
}
OF_IMAGES = ("qwen2vl", "qwen3vl")  # whose results for what `given_to` draws are recorded, too
SOURCE = [17, 5, 99, 30, 201, 64, 8, 8, 150, 3]  # what T5 reads before it writes
# Whose results are of a whole text: how llama.cpp pools it.
POOLED: Mapping[str, tuple[str, Callable[[Outlines], Outline]]] = {
    "modern-bert-reranker": ("rank", modern_reranker),
    "qwen3-reranker": ("rank", qwen3_reranker),
    "embeddinggemma": ("mean", embeddinggemma),
}
