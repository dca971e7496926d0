"""Random settings of config.json, and what transformers makes of them.

    python -m tests.files.huggingface.random_configs record FILE FIRST COUNT
    python -m tests.files.huggingface.random_configs compare FILE

The first needs torch and transformers, the second this package, so that they may be installed in
different environments.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.make_folder_settings import (
    COLUMNS,
    DEEPSEEK,
    EXPERTS,
    FULL,
    GEMMA,
    GPT2,
    LAYERS,
    LLAMA3,
    PART,
    ROWS,
    SHARED,
    TOKENS,
    V3,
    YARN,
    config_of,
    drawn,
    recorded,
)
from tests.files.huggingface.folders import TOKENIZER, safetensors

MISSING: Any = object()
_NEARLY = 1e-6  # NMSE
ACTIVATIONS = [
    MISSING, MISSING, "silu", "relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu2", "tanh",
    "quick_gelu", "sigmoid", "gelu_fast",
]  # fmt: skip
FLAG = [MISSING, True, False]
EPSILON = [MISSING, 1e-6, 1e-3, 1e-2]
WINDOW = [MISSING, None, 5, 12]
SHARE = [MISSING, 0.5, 1.0]
CAP = [MISSING, None, 1.0]
KINDS = [FULL, PART]
Choices = Mapping[str, list[Any]]
USUAL: Choices = {
    "hidden_act": ACTIVATIONS, "rms_norm_eps": EPSILON, "tie_word_embeddings": FLAG,
    "head_dim": [MISSING, 8, 16],
}  # fmt: skip
LLAMA: Choices = {**USUAL, "attention_bias": FLAG, "mlp_bias": FLAG}
SLIDES: Choices = {"sliding_window": WINDOW}
QWENS: Choices = {
    **USUAL, "use_sliding_window": FLAG, "sliding_window": [5, 12],
    "max_window_layers": [MISSING, 0, 1, 2],
}  # fmt: skip
CHOSEN: Choices = {"num_experts_per_tok": [2], "norm_topk_prob": FLAG}
GEMMAS: Choices = {
    "hidden_activation": [MISSING, "gelu_pytorch_tanh", "relu", "gelu"],
    "rms_norm_eps": EPSILON, "tie_word_embeddings": FLAG, "attention_bias": FLAG,
    "query_pre_attn_scalar": [MISSING, 8, 20, 144], "final_logit_softcapping": CAP,
}  # fmt: skip
NORMS: Choices = {
    "hidden_act": ACTIVATIONS, "layer_norm_eps": EPSILON, "tie_word_embeddings": FLAG,
    "partial_rotary_factor": SHARE,
}  # fmt: skip
FAMILIES: dict[str, tuple[Mapping[str, Any], Choices]] = {
    # Settings that all have, and settings to choose from.
    "Llama": ({}, LLAMA),
    "Mistral": ({}, {**USUAL, **SLIDES}),
    "Mixtral": ({"num_local_experts": 4, "num_experts_per_tok": 2}, {**USUAL, **SLIDES}),
    "Granite": ({}, {**LLAMA, "attention_multiplier": [0.2], "logits_scaling": [MISSING, 4.0]}),
    "Arcee": ({}, LLAMA),
    "SmolLM3": ({}, {**LLAMA, "no_rope_layers": [MISSING, [1, 0, 1], [0, 0, 1]]}),
    "Olmo2": ({}, USUAL),
    "Olmoe": ({"num_experts": 4}, {**USUAL, **CHOSEN, "clip_qkv": [MISSING, None, 0.5]}),
    "Starcoder2": ({}, {**USUAL, **SLIDES, "norm_epsilon": EPSILON, "use_bias": FLAG}),
    "Ernie4_5": ({}, {**USUAL, "use_bias": FLAG}),
    "Qwen2": ({}, QWENS),
    "Qwen3": ({}, {**QWENS, "attention_bias": FLAG}),
    "Qwen2Moe": (SHARED, {**QWENS, "norm_topk_prob": FLAG}),
    "Qwen3Moe": (EXPERTS, {**QWENS, "norm_topk_prob": FLAG}),
    "Gemma2": (GEMMA, {**GEMMAS, "attn_logit_softcapping": CAP}),
    "Gemma3": (GEMMA, {**GEMMAS, "sliding_window_pattern": [MISSING, 2, 3]}),
    "GPT2": (GPT2, {
        "activation_function": ACTIVATIONS, "tie_word_embeddings": FLAG,
        "layer_norm_epsilon": EPSILON, "scale_attn_weights": FLAG,
        "scale_attn_by_inverse_layer_idx": FLAG,
    }),
    "GptOss": ({"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}, {
        "rms_norm_eps": EPSILON, "attention_bias": FLAG, "sliding_window": [5, 12],
        "swiglu_limit": [MISSING, 1.0], "swiglu_alpha": [MISSING, 1.2],
    }),
    "Phi3": ({}, {**USUAL, **SLIDES, "head_dim": [MISSING]}),
    "StableLm": ({}, {**NORMS, "use_qkv_bias": FLAG}),
    "Cohere2": ({}, {
        **NORMS, "partial_rotary_factor": [MISSING], "sliding_window": [5],
        "logit_scale": [MISSING, 0.5],
    }),
    "DeepseekV2": (DEEPSEEK, {**USUAL, "head_dim": [MISSING], "attention_bias": FLAG}),
    "DeepseekV3": (V3, {**USUAL, "head_dim": [MISSING], "norm_topk_prob": FLAG}),
    "Exaone4": ({}, {**USUAL, "sliding_window": [5, 12]}),
    "Glm4": ({"head_dim": 16}, {**LLAMA, "head_dim": [16], "partial_rotary_factor": SHARE}),
    "GPTNeoX": ({}, {
        **NORMS, "partial_rotary_factor": [MISSING, 0.5], "rotary_pct": SHARE,
        "rope_theta": [MISSING, 500.0], "rotary_emb_base": [MISSING, 100.0],
    }),
    "Bert": ({}, {"hidden_act": ACTIVATIONS, "layer_norm_eps": EPSILON}),
}  # fmt: skip
_LISTS_LAYERS = ("Gemma2", "Gemma3", "GptOss", "Cohere2", "Exaone4")
_WITHOUT_ROPE = ("GPT2", "Bert")


def random_settings(seed: int) -> tuple[str, dict[str, Any]]:
    """A class, and settings of its config.json."""
    draw = random.Random(seed)
    kind = [*FAMILIES][seed % len(FAMILIES)]
    fixed, choices = FAMILIES[kind]
    made = {**fixed, **{name: draw.choice(values) for name, values in choices.items()}}
    if kind in _LISTS_LAYERS and draw.random() < 0.5:
        made["layer_types"] = [draw.choice(KINDS) for _ in range(LAYERS)]
    if kind not in _WITHOUT_ROPE:
        made |= _rope(draw, kind)
    return kind, {name: value for name, value in made.items() if value is not MISSING}


def _rope(draw: random.Random, kind: str) -> dict[str, Any]:
    theta = draw.choice([500.0, 1e4, 1e6])
    ways: list[Callable[[], dict[str, Any]]] = [
        dict, dict, lambda: {"rope_type": "linear", "factor": 4.0}, lambda: _yarn(draw),
    ]  # fmt: skip
    ways += [] if kind in ("Gemma3", "Phi3") else [lambda: {**LLAMA3}]
    scaling = draw.choice(ways)()
    if kind != "Gemma3" and draw.random() < 0.5:
        return {"rope_parameters": {"rope_type": "default", **scaling, "rope_theta": theta}}
    return {"rope_theta": theta, **({"rope_scaling": scaling} if scaling else {})}


def _yarn(draw: random.Random) -> dict[str, Any]:
    choices: Choices = {
        "attention_factor": [MISSING, 2.0, 0.7], "mscale": [MISSING, 1.0, 0.7],
        "mscale_all_dim": [MISSING, 1.0, 0.5], "truncate": FLAG,
        "beta_fast": [MISSING, 8.0], "beta_slow": [MISSING, 2.0],
    }  # fmt: skip
    more = {name: draw.choice(values) for name, values in choices.items()}
    return {**YARN, **{name: value for name, value in more.items() if value is not MISSING}}


def record(path: Path, first: int, count: int) -> None:
    """Write transformers' results, a line each."""
    logging.disable(logging.CRITICAL)
    lines: list[str] = []
    for seed in range(first, first + count):
        kind, settings = random_settings(seed)
        try:
            made = {"seed": seed, **recorded(kind, settings)}
        except Exception as error:
            made = {"seed": seed, "error": f"{type(error).__name__}: {error}"[:200]}
        lines.append(json.dumps(made))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def tensors_of(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a recorded case."""
    names = {
        name.replace("*", str(i), 1) if "*" in name else name: shape
        for name, shape in shapes.items()
        for i in range(LAYERS if "*" in name else 1)
    }
    return {name: drawn(name, tuple(shape)) for name, shape in names.items()}


def difference(case: Mapping[str, Any]) -> float:
    """Return the NMSE of this package's numbers, compared with those of a recorded case."""
    import wgpu_backend as wb

    kind, settings = random_settings(case["seed"])
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config_of(kind, settings)))
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        (folder / "model.safetensors").write_bytes(safetensors(tensors_of(case["shapes"])))
        given: dict[str, Any] = {"device": "cpu", "exact": True, "kv_dtype": "f32", "num_ctx": 64}
        with wb.load(folder, self_test=False, **given) as model:
            read = model.states if kind == "Bert" else model.logits
            found = np.asarray(read(TOKENS), np.float64)[ROWS, :COLUMNS]
    wanted = np.array(case["rows"])
    return float(((found - wanted) ** 2).sum() / (wanted**2).sum())


def compare(path: Path) -> None:
    """Print what differs, and what is refused."""
    from wgpu_backend.errors import BackendError

    counts: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if "error" in case:
            counts["refused by transformers"] += 1
            continue
        try:
            error = difference(case)
        except BackendError as refusal:
            counts["refused"] += 1
            print(case["seed"], str(refusal)[-150:])  # noqa: T201
            continue
        counts["equal" if error < _NEARLY else "different"] += 1
        if error >= _NEARLY:
            print(*map(str, (case["seed"], *random_settings(case["seed"]), error)))  # noqa: T201
    print(dict(counts))  # noqa: T201


def main() -> None:
    what, path, *numbers = sys.argv[1:]
    if what == "record":
        record(Path(path), *map(int, numbers))
    else:
        compare(Path(path))


if __name__ == "__main__":
    main()
