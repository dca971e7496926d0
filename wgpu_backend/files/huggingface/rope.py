"""Rotary positions: settings of both layouts, and the keys and tensors made of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.values import Values, constant

_THETAS = ("global_rope_theta", "rope_theta", "rotary_emb_base")
_PARTIAL = ("partial_rotary_factor", "rotary_pct", "rope_pct")
_LOCAL = ("rope_local_base_freq", "local_rope_theta")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "su")
# Phi-3's first files say `su` for LongRoPE.
_LONG = ("longrope", "su")
_YARN: Mapping[str, tuple[str, ...]] = {
    "yarn_ext_factor": ("extrapolation_factor",),
    "yarn_beta_fast": ("beta_fast",),
    "yarn_beta_slow": ("beta_slow",),
}


def rope_settings(
    settings: Settings, *, local: bool, usual: Mapping[str, object] | None = None
) -> Settings:
    """Return the rotary settings of ``rope_parameters``, ``rope_scaling``, or config.json itself.

    Parameters
    ----------
    settings : Settings
        Settings of config.json.
    local : bool
        Whether layers with a window may have a separate base, which becomes ``local_theta``.
    usual : mapping, optional
        Rotary settings for a config.json without either section.

    Raises
    ------
    ModelError
        Such layers differ in more than the base, or may not differ.
    """
    name = "rope_parameters" if "rope_parameters" in settings else "rope_scaling"
    rope = settings.section(name)
    if usual and not rope.values:
        rope = Settings(rope.source, usual)
    base = settings.value(*_LOCAL) if local else None
    if _FULL in rope or _SLIDING in rope:
        base = _local_base(rope, base, local=local)
        rope = rope.section(_FULL)
    given = {
        "rope_theta": settings.value(*_THETAS),
        "partial_rotary_factor": settings.value(*_PARTIAL),
        "original_max_position_embeddings": settings.value("original_max_position_embeddings"),
        "rope_type": rope.value("type"),
        "local_theta": base,
    }
    values = {k: v for k, v in given.items() if v is not None}
    return Settings(rope.source, {**values, **rope.values}, {*given})


def _local_base(rope: Settings, base: object, *, local: bool) -> object:
    if not local:
        raise rope.error(_SLIDING, "is set, needs one RoPE for all layers")
    sliding = rope.section(_SLIDING)
    kind = sliding.text("rope_type", default="default")
    if kind != "default" or sliding.number("partial_rotary_factor", default=1.0) != 1:
        raise sliding.error("rope_type", f"is {kind!r}, needs 'default' of whole heads")
    found = sliding.value("rope_theta")
    return base if found is None else found


def rope_kind(rope: Settings) -> str:
    """Return the kind of rotation.

    Raises
    ------
    ModelError
        The kind is unknown.
    """
    kind = rope.text("rope_type", default="default")
    if kind not in _KINDS:
        raise rope.error("rope_type", f"is {kind!r}, needs one of {', '.join(_KINDS)}")
    return kind


def is_long(rope: Settings) -> bool:
    """Return whether frequencies have factors for short and for long contexts."""
    return rope_kind(rope) in _LONG or "long_factor" in rope


def has_factors(rope: Settings) -> bool:
    """Return whether frequencies have factors that differ by pair."""
    return rope_kind(rope) == "llama3" or is_long(rope)


def rope_keys(rope: Settings, settings: Settings) -> dict[str, Value]:
    """Return the keys of rotation; frequencies that differ by pair are a tensor instead."""
    made: dict[str, Value] = {}
    kind = rope_kind(rope)
    if "rope_theta" in rope:
        made["rope.freq_base"] = rope.number("rope_theta")
    if "local_theta" in rope:
        made["rope.freq_base_swa"] = rope.number("local_theta")
    if is_long(rope):
        return made | _long_keys(rope, settings)
    if kind == "linear":
        made["rope.scaling.type"], made["rope.scaling.factor"] = kind, rope.number("factor")
    if kind == "yarn":
        made |= _yarn_keys(rope, settings)
    if kind == "dynamic":
        limit = settings.value("max_position_embeddings")
        warnings.warn(
            f"{rope.source}: rope_type 'dynamic' changes what is beyond {limit} tokens, which is "
            "not followed",
            stacklevel=5,
        )
        rope.value("factor", "alpha")
    return made


def _yarn_keys(rope: Settings, settings: Settings) -> dict[str, Value]:
    """Return YaRN's keys (Peng et al. 2023); GGUF's magnitude is relative to the paper's."""
    length = _old_context(rope, settings)
    factor = rope.number("factor", default=_whole_context(settings) / max(length, 1))
    made: dict[str, Value] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": length,
    }
    for key, names in _YARN.items():
        # transformers treats 0 as missing.
        if rope.value(*names):
            made[f"rope.scaling.{key}"] = rope.number(*names)
    if not rope.flag("truncate", default=True):
        made["rope.scaling.yarn_truncate"] = False
    own = yarn_magnitude(rope, factor) / stretch(factor)
    return made | ({"rope.scaling.attn_factor": own} if own != 1 else {})


def stretch(factor: float, multiplier: float = 1.0) -> float:
    """Return YaRN's temperature, times a number: Peng et al. 2023, §3.4."""
    return 1 + 0.1 * multiplier * math.log(factor) if factor > 1 else 1.0


def yarn_magnitude(rope: Settings, factor: float) -> float:
    """Return YaRN's factor of rotated values: given, or from DeepSeek's ``mscale`` settings."""
    one = rope.number("mscale", default=0.0)
    all_dim = rope.number("mscale_all_dim", default=0.0)
    usual = stretch(factor, one) / stretch(factor, all_dim) if one and all_dim else stretch(factor)
    return rope.number("attention_factor", "attn_factor", default=usual)


def _long_keys(rope: Settings, settings: Settings) -> dict[str, Value]:
    """Return LongRoPE's keys (Ding et al. 2024, §3.3), with YaRN's magnitude if it is named."""
    old = _old_context(rope, settings)
    ratio = rope.number("factor", default=_whole_context(settings) / max(old, 1))
    kind = rope_kind(rope)
    if kind not in (*_LONG, "yarn"):
        raise rope.error("rope_type", f"is {kind!r}, known with long_factor are su, longrope, yarn")
    usual = 1.0
    if ratio > 1:
        usual = stretch(ratio) if kind == "yarn" else math.sqrt(1 + math.log(ratio) / math.log(old))
    return {
        "rope.scaling.original_context_length": old,
        "rope.scaling.attn_factor": rope.number("attention_factor", default=usual),
    }


def _whole_context(settings: Settings) -> int:
    return settings.uint("max_position_embeddings")


def _old_context(rope: Settings, settings: Settings) -> int:
    if "original_max_position_embeddings" in rope:
        return rope.uint("original_max_position_embeddings")
    return _whole_context(settings)


def rope_factors(rope: Settings, dims: int) -> dict[str, Values]:
    """Return tensors of the divisors of frequencies, if there are any.

    Parameters
    ----------
    rope : Settings
        The rotary settings.
    dims : int
        Number of rotated values of a head.

    Raises
    ------
    ModelError
        There are more or fewer factors of long contexts than pairs.
    """
    if rope_kind(rope) == "llama3":
        return {"rope_freqs.weight": constant(llama3_factors(rope, dims))}
    if not is_long(rope):
        return {}
    made: dict[str, Values] = {}
    for name in ("long", "short"):
        factors = rope.numbers(f"{name}_factor")
        if 2 * len(factors) != dims:
            raise rope.error(f"{name}_factor", f"has {len(factors)} values, needs {dims // 2}")
        made[f"rope_factors_{name}.weight"] = constant(np.array(factors, np.float32))
    return made


def llama3_factors(rope: Settings, size: int) -> NDArray[np.float32]:
    """Return the divisors of frequencies: (size / 2,), f32.

    Dubey et al. 2024, "The Llama 3 Herd of Models", as in the published code: waves shorter than a
    part of the old context stay, long ones are slowed down, with a ramp between.
    """
    factor, context = rope.number("factor"), rope.uint("original_max_position_embeddings")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not (factor > 0 and 0 < low < high and context):
        raise rope.error("low_freq_factor", f"is {low}, needs to be above 0 and below {high}")
    base = np.float32(rope.number("rope_theta", default=10_000.0))
    frequencies = 1 / base ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    turns = context / (2 * math.pi / frequencies)
    ramp = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - ramp) / factor + ramp)).astype(np.float32)
