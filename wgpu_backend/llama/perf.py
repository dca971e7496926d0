"""What calls of a context took, and where its messages go."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

LogCallback = Callable[[int, str], object]
_LEVELS = ((logging.ERROR, 4), (logging.WARNING, 3), (logging.INFO, 2))
_DEBUG = 1


@dataclass(slots=True)
class Perf:
    """Tokens and milliseconds, named as ``llama_perf_context_data``.

    Parameters
    ----------
    n_p_eval, n_eval : int
        Tokens of batches of several, and of one.
    t_p_eval_ms, t_eval_ms : float
        What they took.
    """

    n_p_eval: int = 0
    n_eval: int = 0
    t_p_eval_ms: float = 0.0
    t_eval_ms: float = 0.0
    _start: float = field(default_factory=perf_counter)

    def count(self, tokens: int, seconds: float) -> None:
        """Add a call."""
        if tokens > 1:
            self.n_p_eval += tokens
            self.t_p_eval_ms += 1000 * seconds
        else:
            self.n_eval += 1
            self.t_eval_ms += 1000 * seconds

    def reset(self) -> None:
        """Begin to count anew."""
        self.n_p_eval = self.n_eval = 0
        self.t_p_eval_ms = self.t_eval_ms = 0.0
        self._start = perf_counter()

    def __str__(self) -> str:
        total = 1000 * (perf_counter() - self._start)
        rows = [
            ("prompt eval", self.n_p_eval, self.t_p_eval_ms),
            ("eval", self.n_eval, self.t_eval_ms),
        ]
        lines = [
            f"{name:>12} time = {spent:10.2f} ms / {count:5d} tokens"
            f" ({1000 * count / spent if spent else 0:8.2f} tokens per second)"
            for name, count, spent in rows
        ]
        return "\n".join([*lines, f"{'total':>12} time = {total:10.2f} ms"])


class _Handler(logging.Handler):
    def __init__(self, callback: LogCallback) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        level = next((number for least, number in _LEVELS if record.levelno >= least), _DEBUG)
        self._callback(level, self.format(record) + "\n")


_handlers: list[_Handler] = []


def log_set(callback: LogCallback | None) -> None:
    """Give every message of the package to a function, in place of the one before.

    Parameters
    ----------
    callback : callable or None
        Called with a level, 1 (debug) to 4 (error), and a text that ends in a line break. None for
        nobody. Messages also go where `logging` sends those of the logger ``wgpu_backend``.
    """
    logger = logging.getLogger("wgpu_backend")
    while _handlers:
        logger.removeHandler(_handlers.pop())
    if callback is not None:
        _handlers.append(_Handler(callback))
        logger.addHandler(_handlers[0])
