"""How long an answer took, as llama-server has it."""

from __future__ import annotations

from typing import Any

from wgpu_backend.server.fields import Fields
from wgpu_backend.serving.results import Reading, Usage


def timings(prompt: int, usage: Usage) -> dict[str, Any]:
    """Counts and times of a prompt and of what was made behind it.

    The first token comes of the pass that read the prompt, so it does not count for the pace.

    Parameters
    ----------
    prompt : int
        Its tokens.
    usage : Usage
    """
    read, made = prompt - usage.cached_tokens, usage.completion_tokens
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": read,
        "predicted_n": made,
        **_pace("prompt", read, usage.prompt_seconds),
        **_pace("predicted", max(0, made - 1), usage.seconds),
    }


def progress(reading: Reading) -> dict[str, Any]:
    """How far a prompt was read, and how long that took."""
    usage = Usage(cached_tokens=reading.cached, prompt_seconds=reading.seconds)
    done: dict[str, Any] = {"total": reading.total, "cache": reading.cached}
    done |= {"processed": reading.read, "time_ms": round(reading.seconds * 1e3)}
    return {"prompt_progress": done, "timings": timings(reading.read, usage)}


def told_progress(fields: Fields) -> bool:
    """Whether a stream is to say how far the prompt was read."""
    return all(fields.switch(name, default=False) for name in ("stream", "return_progress"))


def _pace(name: str, count: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / count if count else 0.0,
        f"{name}_per_second": count / seconds if seconds else 0.0,
    }
