"""Figures of a server, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend.errors import BackendError
from wgpu_backend.server.pool import Loaded
from wgpu_backend.serving.results import EngineStatus


def metrics_text(loaded: list[Loaded], failures: Mapping[int, int]) -> str:
    """Text of all figures; names are llama.cpp's as far as it has them.

    Those of each model have it as a label; their sums have llama-server's names.

    Parameters
    ----------
    loaded : list of Loaded
    failures : mapping of int to int
        How often each status of an error was sent.
    """
    lines = ["# TYPE http_errors_total counter"]
    lines += [f'http_errors_total{{status="{code}"}} {count}' for code, count in failures.items()]
    rows: dict[str, list[str]] = {}
    sums: dict[str, int] = {}
    for each in loaded:
        status = status_of(each)
        if status is None:
            continue
        label = f'{{model="{each.stored.entry.name}"}}'
        figures = {
            "prompt_tokens_total counter": status.prompt_tokens,
            "prompt_tokens_cached_total counter": status.cached_tokens,
            "tokens_predicted_total counter": status.completion_tokens,
            "requests_total counter": status.requests,
            "requests_failed_total counter": status.failed,
            "requests_cancelled_total counter": status.cancelled,
            "requests_processing gauge": sum(slot is not None for slot in status.slots),
            "requests_deferred gauge": status.queued,
        }
        for name, value in figures.items():
            rows.setdefault(name, []).append(f"{name.split()[0]}{label} {value}")
            sums[name] = sums.get(name, 0) + value
    for name, values in rows.items():
        lines += [f"# TYPE {name}", *values]
    for name, value in sums.items():
        lines += [f"# TYPE llamacpp:{name}", f"llamacpp:{name.split()[0]} {value}"]
    return "\n".join(lines) + "\n"


def status_of(loaded: Loaded) -> EngineStatus | None:
    """What a model does; None where it makes no text, or is just going."""
    try:
        return None if loaded.engine is None else loaded.engine.status()
    except BackendError:
        return None
