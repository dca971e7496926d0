"""Sampling options by llama-server's names: their meaning here, and those that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wgpu_backend.engine.batching.request import MOST_LOGPROBS
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.ops.sampling.host.options import SAMPLERS
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.request import RequestError, clamp_options
from wgpu_backend.server.core.schema import Field

NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
           "frequency_penalty", "dry_multiplier", "dry_base", "xtc_probability", "xtc_threshold",
           "top_n_sigma", "dynatemp_range", "dynatemp_exponent", "mirostat_tau",
           "mirostat_eta")  # fmt: skip
WHOLE = ("top_k", "repeat_last_n", "seed", "dry_allowed_length", "dry_penalty_last_n", "mirostat",
         "min_keep")  # fmt: skip
TEXTS = ("dry_sequence_breakers", "samplers")
_USUAL = SamplingOptions(top_p=0.95, min_p=0.05, seed=-1, samplers=tuple(SAMPLERS))
DEFAULTS: Mapping[str, Any] = {name: getattr(_USUAL, name) for name in (*NUMBERS, *WHOLE, *TEXTS)}
# Seeds that stand for a random one.
_BY_CHANCE = (-1, (1 << 32) - 1)
# The last one given applies.
_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
# Options that are not supported, with the value up to which they are off.
_OFF: Mapping[str, float] = {
    "adaptive_target": -1e-30, "n_indent": 0,
}  # fmt: skip

ADAPTER = {
    "id": Field((int,), "index among the model's adapters", required=True, least=0),
    "scale": Field((float,), "default 0"),
}
FORM: Mapping[str, Field] = {
    **schema.ignore_fields("adaptive_decay", "backend_sampling"),
    **dict.fromkeys(_OFF, schema.NUMBER),
    "t_max_predict_ms": Field(
        (float,), "milliseconds from the first token after which an answer with a line break ends"
    ),
    "lora": Field((list,), "scales of LoRA adapters: objects with id and scale; others have 0"),
    "samplers": Field((list, str), "names or letters of the samplers, in their order"),
    "dry_sequence_breakers": Field((list, str), "texts that end a repetition for DRY"),
    **dict.fromkeys(NUMBERS, schema.NUMBER),
    **dict.fromkeys(WHOLE, schema.WHOLE),
    **dict.fromkeys(_LIMITS, schema.MOST),
    **dict.fromkeys(
        ("n_probs", "logprobs"),
        Field((int,), "most likely tokens to return at each position", most=MOST_LOGPROBS),
    ),
}  # fmt: skip


def read_sampling(fields: Fields) -> dict[str, Any]:
    """Return options by Ollama's names; values out of range become the nearest allowed value.

    Raises
    ------
    RequestError
        A sampler is asked for that is not there.
    """
    for name, off in _OFF.items():
        if (value := fields.get(name, float)) is not None and value > off:
            raise RequestError(400, f"{name}: {value} is not supported; leave it out")
    found: dict[str, Any] = {
        name: v for name in NUMBERS if (v := fields.get(name, float)) is not None
    }
    found |= {name: v for name in WHOLE if (v := fields.get(name, int)) is not None}
    found = clamp_options(found)
    if found.get("dry_base", 1) < 1:
        # llama-server uses its default then.
        del found["dry_base"]
    found |= {name: v for name in TEXTS if (v := fields.get(name, list, str)) is not None}
    if found.get("seed") in _BY_CHANCE:
        found["seed"] = -1
    for name in _LIMITS:
        if (limit := fields.get(name, int)) is not None:
            found["num_predict"] = limit
    return found


def read_lora(fields: Fields) -> list[tuple[int, float]] | None:
    """Return the scales of adapters by their ids; None to keep the model's own.

    Raises
    ------
    RequestError
        An adapter has no id.
    """
    if not fields.has("lora"):
        return None
    found: list[tuple[int, float]] = []
    for number, item in enumerate(fields.objects("lora")):
        each = Fields(item, ADAPTER, f"lora[{number}].")
        found.append((each.get("id", int), each.get("scale", float) or 0.0))
    return found


def read_time_limit(fields: Fields) -> float | None:
    """Return the time limit of an answer that has a line break; None for no limit."""
    found = fields.get("t_max_predict_ms", float)
    return found / 1e3 if found is not None and found > 0 else None


def read_probabilities(fields: Fields) -> int | None:
    """Return how many of the most likely tokens to report at each place; None for none."""
    found = fields.get("n_probs", int)
    asked = fields.get("logprobs", int) if found is None else found
    return asked if asked and asked > 0 else None
