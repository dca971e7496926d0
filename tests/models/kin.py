"""Outlines of models that `tiny_models.py` does not make, out of those of their kin.

`tests/data/make_zoo.py` takes them too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

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


KIN: Mapping[str, Callable[[Outlines], Outline]] = {
    "nomic-bert-moe": nomic_bert_moe,
    "jina-bert-v3": jina_bert_v3,
    "neo-bert": neo_bert,
    "llama-embed": llama_embed,
}
# Whose results are of a whole text: how llama.cpp pools it.
POOLED: Mapping[str, tuple[str, Callable[[Outlines], Outline]]] = {
    "modern-bert-reranker": ("rank", modern_reranker),
    "qwen3-reranker": ("rank", qwen3_reranker),
    "embeddinggemma": ("mean", embeddinggemma),
}
