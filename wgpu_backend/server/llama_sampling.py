"""How tokens are chosen, by llama-server's options: which mean what here, and which are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from wgpu_backend.server import forms
from wgpu_backend.server.fields import Fields
from wgpu_backend.server.forms import Field
from wgpu_backend.server.wanted import RequestError, soft_limits
from wgpu_backend.serving.request import MOST_LOGPROBS

NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
           "frequency_penalty")  # fmt: skip
WHOLE = ("top_k", "repeat_last_n", "seed")
DEFAULTS: dict[str, Any] = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0,
    "repeat_penalty": 1.0, "repeat_last_n": 64, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "seed": -1,
}  # fmt: skip
_BY_CHANCE = (-1, (1 << 32) - 1)  # seeds that mean none
_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")  # the last one that is given holds
# Values up to these are off; what is on would change the text, and is not there.
_OFF: Mapping[str, float] = {
    "dynatemp_range": 0, "dry_multiplier": 0, "xtc_probability": 0, "mirostat": 0,
    "top_n_sigma": 0, "adaptive_target": -1e-30, "n_indent": 0, "min_keep": 1,
}  # fmt: skip
# In the order in which they apply, with what a sampler that is left out leaves as it is.
_SAMPLERS: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {},
    "top_n_sigma": {},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {},
    "temperature": {"temperature": 1.0},
}
_ABSENT = ("dry", "top_n_sigma", "xtc")  # off in any case, so they may stand anywhere
_LETTERS = {"e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p",
            "p": "top_p", "m": "min_p", "x": "xtc", "t": "temperature"}  # fmt: skip

FORM: Mapping[str, Field] = {
    **forms.without_meaning(
        "dynatemp_exponent", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
        "dry_sequence_breakers", "xtc_threshold", "mirostat_tau", "mirostat_eta",
        "adaptive_decay", "backend_sampling",
    ),
    **dict.fromkeys(_OFF, forms.NUMBER),
    "t_max_predict_ms": Field(
        (float,), "time from the first token after which an answer that has a line break ends"
    ),
    "lora": forms.LIST,
    "samplers": Field((list, str), "names of the samplers that apply, in their order, or letters"),
    **dict.fromkeys(NUMBERS, forms.NUMBER),
    **dict.fromkeys(WHOLE, forms.WHOLE),
    **dict.fromkeys(_LIMITS, forms.MOST),
    **dict.fromkeys(
        ("n_probs", "logprobs"),
        Field((int,), "most likely tokens that are given at each place", most=MOST_LOGPROBS),
    ),
}  # fmt: skip


def sampling(fields: Fields) -> dict[str, Any]:
    """Options by Ollama's names; what is out of range comes to the nearest value that is in it.

    Raises
    ------
    RequestError
        A sampler is asked for that is not there, or an order that is not this server's.
    """
    for name, off in _OFF.items():
        if (value := fields.get(name, float)) is not None and value > off:
            raise RequestError(400, f"{name}: {value} is not supported; leave it out")
    fields.refuse("lora", "is not supported")
    found: dict[str, Any] = {
        name: v for name in NUMBERS if (v := fields.get(name, float)) is not None
    }
    found |= {name: v for name in WHOLE if (v := fields.get(name, int)) is not None}
    found = soft_limits(found)
    if found.get("seed") in _BY_CHANCE:
        found["seed"] = -1
    for name in _LIMITS:
        if (limit := fields.get(name, int)) is not None:
            found["num_predict"] = limit
    return found | _left_out(fields.get("samplers", list, str))


def seconds(fields: Fields) -> float | None:
    """How long an answer that has a line break may take; None for any time."""
    found = fields.get("t_max_predict_ms", float)
    return found / 1e3 if found is not None and found > 0 else None


def probabilities(fields: Fields) -> int | None:
    """How many of the likeliest tokens are to be given at each place; None for none."""
    found = fields.get("n_probs", int)
    asked = fields.get("logprobs", int) if found is None else found
    return asked if asked and asked > 0 else None


def _left_out(given: list[object] | str | None) -> dict[str, float]:
    """Neutral options of the samplers that a list does not name."""
    if given is None:
        return {}
    named = [_LETTERS.get(each, each) for each in given] if isinstance(given, str) else given
    for each in named:
        if not isinstance(each, str) or each not in _SAMPLERS:
            needed = ", ".join(_SAMPLERS)
            raise RequestError(400, f"samplers: {str(each)[:40]!r}, needs one of {needed}")
    names = [name for name in cast("Sequence[str]", named) if name not in _ABSENT]
    fixed = [name for name in _SAMPLERS if name in names]
    if names != fixed:
        raise RequestError(
            400,
            f"samplers: {', '.join(names)[:200]}, needs the order {', '.join(fixed)}, each once",
        )
    others = [neutral for name, neutral in _SAMPLERS.items() if name not in names]
    return {name: value for neutral in others for name, value in neutral.items()}
