"""How long an answer took, as llama-server has it."""

from __future__ import annotations

from typing import Any

from wgpu_backend.serving.results import Usage


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


def _pace(name: str, count: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / count if count else 0.0,
        f"{name}_per_second": count / seconds if seconds else 0.0,
    }
