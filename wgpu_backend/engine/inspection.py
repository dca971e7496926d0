"""Inspection of a model: graphs of its passes, attention weights, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.arguments import token_ids
from wgpu_backend.engine.encoding import runner_of
from wgpu_backend.engine.graph_facts import Pass, described
from wgpu_backend.engine.readings import Readings
from wgpu_backend.engine.runner import SHORTEST, Head, Runner, bucket
from wgpu_backend.errors import ContextFull, ModelError, OptionError
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.attention_weights import attention_weights
from wgpu_backend.nn.batch import Batch, BatchShape, Work

# Most tokens whose attention weights are returned: their number grows with the square.
MOST_ATTENDED = 128
_DIGITS = 4


class Inspection(Readings):
    """The methods that inspect passes of the model's own session."""

    def attention(self, tokens: Sequence[int], layer: int) -> NDArray[np.float32]:
        """Compute the attention weights between the tokens of a text in one layer.

        Parameters
        ----------
        tokens : sequence of int
            At most 128 token ids.

        Returns
        -------
        (heads, tokens, tokens), f32
            Rows sum to 1, less the share of an attention sink.

        Raises
        ------
        ContextFull
            There are no tokens, or too many.
        OptionError
            The model does not have this layer.
        ModelError
            The layer has no attention, or not of a kind that can be shown.
        """
        ids = token_ids(tokens, self._sessions.vocabulary)
        most = min(MOST_ATTENDED, self.runner.chunk, self.num_ctx)
        if not 0 < len(ids) <= most:
            raise ContextFull(f"attention: {len(ids)} tokens, needs 1 to {most}")
        layers = self.backend.config.uint("block_count", 1)
        if not 0 <= layer < layers:
            raise OptionError(f"layer: {layer}, the model has 0 to {layers - 1}")
        if self.model.prompt_encoder() is not None:
            raise ModelError("attention: of a model with an encoder before it cannot be shown")
        turn = self._session.calls.take
        session = self._session
        return turn(lambda: self._sessions.alone(session, lambda: self._attended(ids, layer)))

    def _attended(self, ids: Sequence[int], layer: int) -> NDArray[np.float32]:
        count = len(ids)

        def build(batch: Batch, _: Tensor) -> Sequence[Tensor]:
            if layer not in batch.attended:
                raise ModelError(f"attention: layer {layer} does not attend to tokens")
            return [attention_weights(batch.attended[layer], count)]

        self._session.claim("attention()")
        self._session.tokens.clear()
        self.cache.remove(self._session.sequence)
        works = [Work(self._session.sequence, ids, range(count))]
        # A runner of its own, so that its graph is released afterwards.
        runner = runner_of(self.model, self.cache)
        try:
            run = partial(runner.run, works, Head("attention", build), {})
            found = self._sessions.with_room(self._session, run).wait()[0]
        finally:
            runner.close()
            # Layers after `layer` may not have written their keys and values.
            self.cache.remove(self._session.sequence)
        return np.ascontiguousarray(found[:count, :, :count].transpose(1, 0, 2))

    def graphs(self, prompt: int) -> list[Pass]:
        """Record the graphs of a prompt of so many tokens and of the step after it; run nothing."""
        longest = min(bucket(prompt + 1, SHORTEST), self.cache.positions)
        step, whole = (
            BatchShape(1, 1, 1, longest),
            BatchShape(bucket(prompt), 1, 1, longest),
        )

        def recorded() -> list[Pass]:
            runner = runner_of(self.model, self.cache)
            try:
                return [
                    self._recorded(runner, f"decode step at {prompt}", step),
                    self._recorded(runner, f"prompt of {prompt} tokens", whole),
                ]
            finally:
                runner.close()

        return self._sessions.alone(self._session, recorded)

    def _recorded(self, runner: Runner, name: str, shape: BatchShape) -> Pass:
        outputs: list[Tensor] = []

        def build(_: Batch, hidden: Tensor) -> Sequence[Tensor]:
            model = self.model
            outputs.append(model.logits(hidden).argmax() if model.has_logits else hidden)
            return outputs

        made = runner.recorded(shape, Head(f"graph of a {name}", build))
        can = self.backend.executor.capabilities
        return described(name, made.scheduled, made.plan, outputs, made.dispatches, can)

    def memory(self) -> Mapping[str, int]:
        """Return the bytes of weights, cache and recorded graphs on the device."""
        found = self._sessions.alone(self._session, self.backend.backend_memory)
        parts = (found.cpu, *found.gpus)
        return {
            "weights": sum(sum(part.weights) for part in parts),
            "cache": sum(sum(part.cache) for part in parts),
            "graphs": sum(part.graph for part in parts),
        }

    def inspect(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a view of the model as plain data, which can be sent between processes.

        Parameters
        ----------
        what : str
            ``attention`` with `tokens` and `layer`, ``graphs`` with `prompt`, or ``memory``.

        Raises
        ------
        OptionError
            `what` is not a known view.
        """
        match what:
            case "attention":
                weights = self.attention(given["tokens"], given["layer"])
                rounded = np.round(weights.astype(np.float64), _DIGITS).tolist()
                return {"layers": self.backend.config.uint("block_count", 1), "weights": rounded}
            case "graphs":
                prompt = min(given["prompt"], self.runner.chunk, self.num_ctx - 1)
                return {"passes": [asdict(each) for each in self.graphs(prompt)]}
            case "memory":
                return dict(self.memory())
            case _:
                raise OptionError(f"inspect: {what[:40]!r}, needs attention, graphs or memory")
