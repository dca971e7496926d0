"""Metrics of a server, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend.engine.batching.results import EngineStatus
from wgpu_backend.errors import BackendError
from wgpu_backend.server.core.model_pool import Loaded

# Metrics whose total is the largest over all models, not the sum.
_MOST = ("n_tokens_max counter",)


def format_metrics(loaded: list[Loaded], failures: Mapping[int, int]) -> str:
    """Return all metrics as text; names are llama.cpp's where it has them.

    Metrics of a model have its name as a label; their sums have llama-server's names.

    Parameters
    ----------
    failures : mapping of int to int
        How often each status of an error was sent.
    """
    lines = ["# TYPE http_errors_total counter"]
    lines += [f'http_errors_total{{status="{code}"}} {count}' for code, count in failures.items()]
    rows: dict[str, list[str]] = {}
    sums: dict[str, float] = {}
    for each in loaded:
        figures = _collect_metrics(each)
        label = f'{{model="{each.stored.entry.name}"}}'
        for name, value in figures.items():
            rows.setdefault(name, []).append(f"{name.split()[0]}{label} {value}")
            before = sums.get(name, 0)
            sums[name] = max(before, value) if name in _MOST else before + value
    for name, values in rows.items():
        lines += [f"# TYPE {name}", *values]
    for name, value in (sums | _compute_rates(sums)).items():
        bare = name.split()[0]
        about = f"# HELP llamacpp:{bare} {bare.replace('_', ' ')}, of all models"
        lines += [about, f"# TYPE llamacpp:{name}", f"llamacpp:{bare} {value}"]
    return "\n".join(lines) + "\n"


def _collect_metrics(loaded: Loaded) -> dict[str, float]:
    """Return the metrics of one model: of its completions, and of the texts it embedded."""
    status, vectors = get_engine_status(loaded), loaded.embedded
    if status is None:
        if not vectors.texts:
            return {}
        status = EngineStatus((None,) * loaded.model.num_parallel)
    busy = sum(slot is not None for slot in status.slots)
    return {
        # llama-server counts the tokens that were computed, without cached ones.
        "prompt_tokens_total counter": status.prompt_tokens - status.cached_tokens + vectors.tokens,
        "prompt_tokens_cached_total counter": status.cached_tokens,
        "prompt_seconds_total counter": status.prompt_seconds + vectors.seconds,
        "tokens_predicted_total counter": status.completion_tokens,
        "tokens_predicted_seconds_total counter": status.seconds,
        "n_decode_total counter": status.steps + vectors.texts,
        "n_tokens_max counter": status.longest,
        "n_busy_slots_total counter": status.busy,
        "spec_decode_num_drafts_total counter": status.drafts,
        "spec_decode_num_draft_tokens_total counter": status.guessed_tokens,
        "spec_decode_num_accepted_tokens_total counter": status.right_guesses,
        "requests_total counter": status.requests,
        "requests_failed_total counter": status.failed,
        "requests_cancelled_total counter": status.cancelled,
        "requests_processing gauge": busy,
        "requests_deferred gauge": status.queued,
    }


def _compute_rates(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the averages: tokens per second of reading and writing, and busy slots per pass."""
    pairs = {
        "prompt_tokens_seconds gauge": ("prompt_tokens_total", "prompt_seconds_total"),
        "predicted_tokens_seconds gauge": (
            "tokens_predicted_total",
            "tokens_predicted_seconds_total",
        ),
        "n_busy_slots_per_decode gauge": ("n_busy_slots_total", "n_decode_total"),
    }
    found: dict[str, float] = {}
    for name, (count, over) in pairs.items():
        spent = sums.get(f"{over} counter", 0.0)
        found[name] = sums.get(f"{count} counter", 0) / spent if spent else 0.0
    return found


def get_engine_status(loaded: Loaded) -> EngineStatus | None:
    """Return the status of a model's engine; None if it has none, or is just being unloaded."""
    try:
        return None if loaded.engine is None else loaded.engine.status()
    except BackendError:
        return None
