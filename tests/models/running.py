"""A model on a shared executor with a cache of its own, asked in every way."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.models.related import SOURCE
from wgpu_backend.dtypes import F32, DType
from wgpu_backend.engine.runner import HIDDEN, Head, Work, make_runner
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.executor import Executor
from wgpu_backend.nn.model import model_class


class Running:
    """Runs token ids and gives all their logits, or states where a model has no logits."""

    def __init__(self, backend: Backend, positions: int, dtype: DType) -> None:
        self.model = model_class(backend.config)(backend)
        self.model.fit_context(positions)
        self.cache = self.model.make_cache(backend.executor, 4, positions, dtype)
        self.runner = make_runner(self.model, self.cache)
        logits = Head("logits", lambda batch, hidden: [self.model.logits(hidden)])
        self.head = logits if self.model.has_logits else HIDDEN

    def batch(self, parts: dict[int, Sequence[int]]) -> list[np.ndarray]:
        """One pass over tokens of several sequences, by number: (tokens, cols) for each."""
        works = [Work(s, tokens, range(len(tokens))) for s, tokens in parts.items()]
        rows = self.runner.run(works, self.head, {}).wait()[0]
        ends = np.cumsum([len(tokens) for tokens in parts.values()])
        return np.split(rows[: ends[-1]], ends[:-1])

    def ask(self, tokens: Sequence[int], step: int = 256, sequence: int = 0) -> np.ndarray:
        """Tokens after what the sequence has, at most `step` in a pass: (tokens, cols)."""
        steps = (tokens[i : i + step] for i in range(0, len(tokens), step))
        return np.concatenate([self.batch({sequence: part})[0] for part in steps])

    def anew(self, tokens: Sequence[int], step: int = 256) -> np.ndarray:
        """The same from an empty sequence; an encoder, where there is one, has read `SOURCE`."""
        self.cache.remove(0)
        self.runner.read(0, SOURCE)
        return self.ask(tokens, step)

    def close(self) -> None:
        self.runner.close()
        self.cache.close()


@contextmanager
def running(
    path: Path, executor: Executor, positions: int = 64, dtype: DType = F32
) -> Iterator[Running]:
    """A model of a file; its weights stay on the executor, which others use too."""
    with open_gguf(path) as file:
        backend = Backend(file, executor)
        backend.load(fused_weights=model_class(backend.config).fused_weights)
        model = Running(backend, positions, dtype)
        try:
            yield model
        finally:
            model.close()
