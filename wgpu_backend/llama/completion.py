"""Completions of Llama, as OpenAI's API gives them."""

from __future__ import annotations

import secrets
import time
import uuid
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wgpu_backend.engine.arguments import stops as stop_texts
from wgpu_backend.engine.generation import Stats, pieces
from wgpu_backend.errors import ContextFull, OptionError
from wgpu_backend.llama.chain import DEFAULT_SEED
from wgpu_backend.llama.drop_in_state import LlamaState
from wgpu_backend.llama.drop_in_steps import Steps
from wgpu_backend.llama.logprobs import Logprobs, log_softmax
from wgpu_backend.llama.processors import (
    LogitsProcessor,
    LogitsProcessorList,
    Processors,
    StoppingCriteria,
    processor_of,
)
from wgpu_backend.llama.states import StateError

Json = dict[str, Any]


@dataclass(slots=True)
class Asked:
    """A completion that is asked for.

    Parameters
    ----------
    tokens : list of int
        The prompt.
    text : str
        It as text, for `echo`.
    limit : int
        Tokens to make at most.
    logprobs : int or None
        How many of the likeliest tokens to tell of.
    sampling : mapping
        Arguments of `Llama.generate`.
    name : str
        Of the model, in answers.
    stats : Stats
        Says why it ended.
    made : list of int
        Tokens made so far, and the one that ended it not.
    """

    tokens: list[int]
    text: str
    limit: int
    stop: list[str]
    logprobs: int | None
    sampling: Mapping[str, Any]
    name: str
    echo: bool = False
    stats: Stats = field(default_factory=Stats)
    made: list[int] = field(default_factory=list[int])
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, text: str, logprobs: Json | None, reason: str | None) -> Json:
        """A piece of text in the shape of an answer."""
        choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.name,
            "choices": [choice],
        }

    def usage(self) -> Json:
        """Tokens of prompt and answer."""
        prompt, made = len(self.tokens), len(self.made)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
        }


class Completions(Steps):
    """The part of `Llama` that completes texts."""

    model_path: str
    cache: Any

    @abstractmethod
    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """Turn tokens into bytes."""

    @abstractmethod
    def save_state(self) -> LlamaState:
        """What the context has."""

    @abstractmethod
    def load_state(self, state: LlamaState) -> None:
        """Go on from a state."""

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None = None,
        logits_processor: Processors | None = None,
        grammar: object = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Any:  # noqa: ANN401  an answer, or an iterator of its parts
        """Continue a text.

        Parameters
        ----------
        suffix : str or None
            Text behind the gap that is to be filled, for models with such tokens.
        max_tokens : int or None
            Most tokens; None or less than 1 for as many as the context holds.
        logprobs : int or None
            Tell of the likeliest tokens, so many in each place; needs ``logits_all=True``.
        echo : bool
            Give the prompt in front.
        stop : str or sequence of str
            Texts that end it.
        stream : bool
            Give an iterator of parts.
        seed : int or None
            None for one that follows from the model's.
        stopping_criteria : callable or None
            Of tokens and the last logits, whether to end; asked before each token is given.
        temperature, top_p, min_p, typical_p, top_k, mirostat_mode, mirostat_tau, mirostat_eta
            See `SamplerChain`.
        frequency_penalty, presence_penalty, repeat_penalty, logit_bias, logits_processor
            What changes logits first.

        Returns
        -------
        dict, or iterator of dict
            Shaped as OpenAI's completions.

        Raises
        ------
        ContextFull
            The prompt is too long, or empty.
        OptionError
            An option is unknown here, see ``docs/llama.md``.
        """
        if logprobs is not None and not self._logits_all:
            raise OptionError("logprobs: needs a model that was made with logits_all=True")
        processor = _biased(logit_bias, logits_processor)
        sampling = {
            "temp": temperature, "top_p": top_p, "min_p": min_p, "typical_p": typical_p,
            "frequency_penalty": frequency_penalty, "presence_penalty": presence_penalty,
            "repeat_penalty": repeat_penalty, "top_k": top_k, "tfs_z": tfs_z,
            "mirostat_mode": mirostat_mode, "mirostat_tau": mirostat_tau,
            "mirostat_eta": mirostat_eta, "stopping_criteria": stopping_criteria,
            "logits_processor": processor, "grammar": grammar,
        }  # fmt: skip
        tokens = self._prompt(prompt, suffix)
        text = prompt if isinstance(prompt, str) else _text(self.detokenize(list(prompt)))
        asked = Asked(
            tokens, text, self._limit(len(tokens), max_tokens), stop_texts(stop),
            logprobs, sampling, model or self.model_path, echo,
        )  # fmt: skip
        self._begin(tokens, seed)
        parts = self._parts(asked)
        return parts if stream else self._whole(asked, parts)

    def _prompt(self, prompt: str | Sequence[int], suffix: str | None) -> list[int]:
        model = self.model
        if suffix is not None:
            tokens = self._with_gap(prompt, suffix)
        elif isinstance(prompt, str):
            tokens = model.tokenize(prompt, True, True)
        else:
            tokens = [int(token) for token in prompt]
        if not tokens and model.token_bos() >= 0:
            tokens = [model.token_bos()]
        return tokens

    def _with_gap(self, prompt: str | Sequence[int], suffix: str) -> list[int]:
        """Tokens of what stands around a gap, in the order that models are trained on."""
        model = self.model
        marks = [model.token_prefix(), model.token_suffix(), model.token_middle()]
        if min(marks) < 0:
            raise OptionError(
                "suffix: the model has no tokens of filling in the middle; leave it out"
            )
        before = model.tokenize(prompt, False) if isinstance(prompt, str) else list(prompt)
        bos = [model.token_bos()] if model.add_bos_token() else []
        behind = model.tokenizer.encode_further(suffix)  # without a space in front of it
        return [*bos, marks[0], *before, marks[1], *behind, marks[2]]

    def _limit(self, prompt: int, wanted: int | None) -> int:
        room = self.n_ctx()
        if not 0 < prompt < room:
            raise ContextFull(
                f"Requested tokens ({prompt}) exceed context window of {room}, or are none; "
                "shorten the prompt or make the model with a larger n_ctx"
            )
        left = room - prompt
        return left if wanted is None or wanted <= 0 else min(wanted, left)

    def _begin(self, tokens: Sequence[int], seed: int | None) -> None:
        """Set the seed, and go on from the state that has most of the prompt."""
        if seed is not None:
            self._seed = seed
        elif self._seed in (0, DEFAULT_SEED) or self._seed < 0:  # 0 as llama-cpp-python has it
            self._seed = secrets.randbits(31)
        else:
            self._seed = Random(self._seed).randint(0, 2**31)
        if self.cache is None:
            return
        try:
            found = self.cache[tokens]
        except KeyError:
            return
        known = found.input_ids[: found.n_tokens].tolist()
        had = self.longest_token_prefix(self.eval_tokens, tokens)
        if self.longest_token_prefix(known, tokens) > had:
            seed_now = self._seed
            with suppress(StateError):  # of another model; caches in files outlive theirs
                self.load_state(found)
            self._seed = seed_now

    def _tokens(self, asked: Asked) -> Generator[int]:
        """Tokens until an end; notes why."""
        stats = asked.stats
        with closing(self.generate(asked.tokens, **asked.sampling)) as tokens:
            for token in tokens:
                if self.model.is_eog(token):
                    stats.done_reason = "stop"
                    return
                asked.made.append(token)
                yield token
                if len(asked.made) >= asked.limit:
                    stats.done_reason = "length"
                    return
        stats.done_reason = "stop"  # a criterion said so

    def _parts(self, asked: Asked) -> Generator[Json]:
        told = Logprobs(self.model, asked.tokens, asked.text, asked.logprobs)
        stream = self.model.tokenizer.stream()
        echoed = not asked.echo
        made = self._tokens(asked)
        for text in pieces(made, stream, asked.stop, asked.stats, unfinished=False):
            if not echoed:  # its logits are there with the first token
                yield asked.chunk(asked.text, told.of_prompt(self._rows), None)
                echoed = True
            yield asked.chunk(text, told.following(asked.made, self._rows), None)
        if not echoed:
            yield asked.chunk(asked.text, told.of_prompt(self._rows), None)
        yield asked.chunk("", None, asked.stats.done_reason)
        if self.cache is not None:
            self.cache[self.eval_tokens] = self.save_state()

    def _whole(self, asked: Asked, parts: Iterator[Json]) -> Json:
        choices = [part["choices"][0] for part in parts]
        text = "".join(choice["text"] for choice in choices)
        told = Logprobs.joined([choice["logprobs"] for choice in choices])
        whole = asked.chunk(text, told, choices[-1]["finish_reason"])
        return {**whole, "usage": asked.usage()}

    __call__ = create_completion

    @staticmethod
    def logits_to_logprobs(logits: ArrayLike, axis: int = -1) -> NDArray[np.single]:
        """Logarithms of probabilities."""
        return log_softmax(np.asarray(logits, np.single), axis)


def _biased(
    biases: Mapping[int, float] | None, processor: Processors | None
) -> LogitsProcessor | None:
    """Processor that adds biases behind others."""
    processor = processor_of(processor)
    if not biases:
        return processor
    ids = np.array([int(token) for token in biases])
    values = np.array([float(bias) for bias in biases.values()], np.single)

    def add(_: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        if ids.min() < 0 or ids.max() >= len(scores):
            raise OptionError(f"logit_bias: token {ids.max()}, the vocabulary has {len(scores)}")
        changed = scores.copy()
        changed[ids] += values
        return changed

    return LogitsProcessorList([*([processor] if processor else []), add])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "ignore")
