"""Models whose logits are recorded: what they are, what they are given, which rows are kept."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.builders import WEIGHT_TYPES, Dims, tiny_model

ARCHITECTURES = ("llama", "qwen2", "qwen3")
RECORDED = Path(__file__).parent.parent / "data" / "logits"


@dataclass(frozen=True, slots=True)
class Case:
    """A model of `tests.builders`, and the positions of its run whose logits are recorded."""

    architecture: str
    dtype: str = "f32"
    options: dict[str, Any] = field(default_factory=dict)
    length: int = 40
    rows: tuple[int, ...] = (0, 1, 7, 31, 32, 39)

    def write(self, path: Path) -> Path:
        return tiny_model(path, self.architecture, self.dtype, **self.options)

    @property
    def tokens(self) -> list[int]:
        return np.random.default_rng(self.length).integers(0, 256, self.length).tolist()


def types(architecture: str) -> dict[str, Case]:
    """Every weight type; every second model has tied heads, each has weights of its own."""
    return {
        dtype: Case(architecture, dtype, {"tied": i % 2 == 1, "seed": i})
        for i, dtype in enumerate(WEIGHT_TYPES)
    }


def scaled(architecture: str, kind: str, factor: float, **keys: float) -> Case:
    """Positions stretched; the original context is short, so that factors matter within the run."""
    scaling = {"type": kind, "factor": factor, "original_context_length": 16, **keys}
    extra = {f"{architecture}.rope.scaling.{key}": value for key, value in scaling.items()}
    return Case(architecture, options={"extra": extra})


def by_context(architecture: str, original: int, **keys: float) -> Case:
    """LongRoPE: the long factors for contexts beyond the original one, else the short ones."""
    scaling = {"type": "longrope", "original_context_length": original, "attn_factor": 1.19, **keys}
    extra = {f"{architecture}.rope.scaling.{key}": value for key, value in scaling.items()}
    vectors = {
        "rope_factors_long.weight": np.geomspace(1, 8, 8),
        "rope_factors_short.weight": np.linspace(1, 1.3, 8),
    }
    return Case(architecture, options={"extra": extra, "vectors": vectors})


def heads(group: int) -> Case:
    """Query heads in groups of `group`, whose values together are not the model's width."""
    kv_heads = 2 if group < 4 else 1
    dims = Dims(layers=1, width=96, heads=group * kv_heads, kv_heads=kv_heads, head_dim=40)
    return Case("llama", "f16", {"dims": dims, "seed": group})


def variants() -> dict[str, Case]:
    """What else a file may say: rope scaling and factors, biases, groups of heads."""
    rng = np.random.default_rng(0)
    factors = np.geomspace(1, 8, 8)
    biases = {
        f"blk.{layer}.attn_{name}.bias": rng.normal(0, 0.3, size)
        for layer in range(2)
        for name, size in {"q": 64, "k": 32, "v": 32}.items()
    }
    cases = {
        "llama-factors": Case("llama", options={"vectors": {"rope_freqs.weight": factors}}),
        "llama-biases": Case("llama", "q4_0", {"vectors": biases}),
        "llama-linear": scaled("llama", "linear", 4.0),
        "llama-unscaled": scaled("llama", "none", 4.0),
        "llama-yarn": scaled("llama", "yarn", 4.0),
        "llama-longrope-long": by_context("llama", 16),
        "llama-longrope-short": by_context("llama", 2048),
        "llama-longrope-stretched": by_context("llama", 16, factor=2.0),
        "qwen2-yarn": scaled("qwen2", "yarn", 8.0),
        "qwen3-yarn": scaled("qwen3", "yarn", 2.0, attn_factor=1.25),
    }
    return cases | {f"llama-group-{n}": heads(n) for n in range(1, 9)}


LONG = Case(
    "llama",
    "q8_0",
    {"dims": Dims(layers=2, kv_heads=1, context=1024), "seed": 1},
    length=720,
    rows=(0, 255, 256, 511, 512, 600, 712, 719),
)

FILES: dict[str, Callable[[], dict[str, Case]]] = {
    **{name: lambda name=name: types(name) for name in ARCHITECTURES},
    "variants": variants,
    "long": lambda: {"llama-long": LONG},
}


def recorded(file: str, name: str) -> np.ndarray:
    """llama.cpp's logits of a case: (rows, vocabulary), float32."""
    with np.load(RECORDED / f"{file}.npz") as arrays:
        return arrays[name]
