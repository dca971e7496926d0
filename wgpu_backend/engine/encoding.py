"""Encoder-decoder models: the encoder reads a prompt once, and the answer attends to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.dtypes import I32
from wgpu_backend.engine.runner import Head, Runner, bucket
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch, Work
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.encoded import EncodedCache
from wgpu_backend.nn.kvcache.layered import LayeredCache
from wgpu_backend.nn.model import Model, PromptEncoder

SLOTS = "encoded.slots"


class EncodingRunner(Runner):
    """A runner of the decoder whose `read` runs the encoder.

    Parameters
    ----------
    prompt_encoder : PromptEncoder
        The model's encoder, and the projection of its states for the decoder.
    cache : Cache
        The decoder's cache, with a part for encoded texts.
    chunk : int or None
        See `Runner`.
    """

    def __init__(
        self, model: Model, prompt_encoder: PromptEncoder, cache: Cache, chunk: int | None = None
    ) -> None:
        super().__init__(model, cache, chunk)
        self._prompt_encoder = prompt_encoder
        self._texts = texts = _texts_of(cache)
        executor, dtype = model.backend.executor, texts.tensors[0].dtype
        own = prompt_encoder.encoder.make_cache(executor, 1, texts.positions, dtype)
        self._encoder = Runner(prompt_encoder.encoder, own)

        def build(batch: Batch, hidden: Tensor) -> Sequence[Tensor]:
            slots = batch.context.input(SLOTS, (batch.shape.tokens,), I32)
            for layer, (key, value) in enumerate(prompt_encoder.project_states(hidden)):
                batch.context.forward(*texts.write(layer, key, value, slots))
            # The graph needs an output for the host to wait for.
            return [hidden.slice(0, 0, 1)]

        self._head = Head("encoded", build)

    def begins(self, prompt: Sequence[int]) -> Sequence[int]:
        """Return the token that answers begin with."""
        return [self._prompt_encoder.start]

    @uninterrupted
    def read(self, sequence: int, prompt: Sequence[int]) -> None:
        """Encode a prompt for a sequence's answer to attend to.

        Raises
        ------
        CacheFull
            The cache has no room for the prompt.
        """
        slots = np.full(bucket(len(prompt)), -1, np.int32)
        slots[: len(prompt)] = self._texts.begin(sequence, len(prompt))
        self._encoder.cache.remove(0)
        work = Work(0, prompt, range(len(prompt)))
        self._encoder.run([work], self._head, {SLOTS: slots})

    @uninterrupted
    def forget_variants(self) -> None:
        """Release graphs for other variants of the model and of its encoder."""
        super().forget_variants()
        self._encoder.forget_variants()

    @uninterrupted
    def close(self) -> None:
        """Release the recorded graphs and the encoder's cache; safe to call again."""
        self._encoder.close()
        self._encoder.cache.close()
        super().close()


def runner_of(model: Model, cache: Cache) -> Runner:
    """Make the runner of a model, including its encoder if it has one."""
    encoder = model.prompt_encoder()
    return Runner(model, cache) if encoder is None else EncodingRunner(model, encoder, cache)


def _texts_of(cache: Cache) -> EncodedCache:
    parts = cache.parts if isinstance(cache, LayeredCache) else ()
    [found] = (part for part in parts if isinstance(part, EncodedCache))
    return found
