"""Times of a context's calls, and the receiver of log messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

LogCallback = Callable[[int, str], object]
# llama.h's ``ggml_log_level`` for Python's levels.
_LEVELS = ((logging.ERROR, 4), (logging.WARNING, 3), (logging.INFO, 2))
_DEBUG = 1


@dataclass(slots=True)
class Perf:
    """The tokens and times of a context's calls, named as in ``llama_perf_context_data``.

    Parameters
    ----------
    n_p_eval, n_eval : int
        Tokens in batches of several tokens, and of one.
    t_p_eval_ms, t_eval_ms : float
        Milliseconds of these batches.
    """

    n_p_eval: int = 0
    n_eval: int = 0
    t_p_eval_ms: float = 0.0
    t_eval_ms: float = 0.0
    _start: float = field(default_factory=perf_counter)

    def count(self, tokens: int, seconds: float) -> None:
        """Add a call."""
        # llama.cpp also takes batches of several tokens for prompts.
        if tokens > 1:
            self.n_p_eval += tokens
            self.t_p_eval_ms += 1000 * seconds
        else:
            self.n_eval += 1
            self.t_eval_ms += 1000 * seconds

    def reset(self) -> None:
        """Set all counts and times to 0."""
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
        # The first level that the record reaches.
        level = next((number for least, number in _LEVELS if record.levelno >= least), _DEBUG)
        self._callback(level, self.format(record) + "\n")


# The handler of the current callback, if there is one. llama_log_set is global too.
_handlers: list[_Handler] = []


def log_set(callback: LogCallback | None) -> None:
    """Set the function that receives the package's log messages; it replaces the last one.

    Parameters
    ----------
    callback : callable or None
        Called with a level, 1 (debug) to 4 (error), and a text that ends in a line break. None
        removes the function. The logger ``wgpu_backend`` of `logging` has the messages in addition.
    """
    logger = logging.getLogger("wgpu_backend")
    while _handlers:
        logger.removeHandler(_handlers.pop())
    if callback is not None:
        _handlers.append(_Handler(callback))
        logger.addHandler(_handlers[0])
