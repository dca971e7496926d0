"""Counts and durations of an answer, in llama-server's form."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from wgpu_backend.engine.batching.results import Reading, Usage
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import CompletionOutput


def make_timings(prompt: int, usage: Usage) -> dict[str, Any]:
    """Return the counts and durations of a prompt and of its answer.

    The first token comes from the pass that read the prompt, so it does not count for the pace.

    Parameters
    ----------
    prompt : int
        Its tokens.
    """
    # llama-server counts cached tokens apart, as cache_n.
    read, made = prompt - usage.cached_tokens, usage.completion_tokens
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": read,
        "predicted_n": made,
        **_make_rates("prompt", read, usage.prompt_seconds),
        **_make_rates("predicted", max(0, made - 1), usage.seconds),
    }


def make_progress(reading: Reading) -> dict[str, Any]:
    """Return the progress of reading a prompt, and its duration."""
    usage = Usage(cached_tokens=reading.cached, prompt_seconds=reading.seconds)
    done: dict[str, Any] = {"total": reading.total, "cache": reading.cached}
    done |= {"processed": reading.read, "time_ms": round(reading.seconds * 1e3)}
    return {"prompt_progress": done, "timings": make_timings(reading.read, usage)}


def needs_progress(fields: Fields) -> bool:
    """Return whether a stream reports prompt progress or timings, and so needs progress events."""
    asked = (
        fields.switch(name, default=False) for name in ("return_progress", "timings_per_token")
    )
    return any([*asked]) and fields.switch("stream", default=False)


@dataclass(slots=True)
class Pace:
    """The progress and timings that a stream adds to its pieces.

    Parameters
    ----------
    progress, times : bool
        Whether to report the progress of reading the prompt, and timings with each piece.
    """

    progress: bool
    times: bool
    _usage: Usage = field(default_factory=Usage)
    _first: float = 0.0

    @classmethod
    def from_fields(cls, fields: Fields) -> Pace:
        """Create a pace from a request's `return_progress` and `timings_per_token`."""
        return cls(
            progress=fields.switch("return_progress", default=False),
            times=fields.switch("timings_per_token", default=False),
        )

    def get_fields(self, prompt: int, output: CompletionOutput) -> dict[str, Any]:
        """Return the fields for the piece of an output; `prompt` is the prompt's token count."""
        if (reading := output.reading) is not None:
            read = {"cached_tokens": reading.cached, "prompt_seconds": reading.seconds}
            self._usage = replace(self._usage, **read)
            return make_progress(reading) if self.progress else {}
        if not output.tokens or not self.times:
            return {}
        now = time.perf_counter()
        self._first = self._first or now
        made = self._usage.completion_tokens + len(output.tokens)
        self._usage = replace(self._usage, completion_tokens=made, seconds=now - self._first)
        return {"timings": make_timings(prompt, self._usage)}


def _make_rates(name: str, count: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / count if count else 0.0,
        f"{name}_per_second": count / seconds if seconds else 0.0,
    }
