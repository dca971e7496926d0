"""Requests to an engine, checked on construction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack, cast

from wgpu_backend.engine.arguments import (
    Options,
    check_options,
    describe,
    stops,
    token_ids,
    within,
)
from wgpu_backend.engine.media import Placed
from wgpu_backend.errors import ContextFull, OptionError
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.ops.sampling.host.options import RANDOM_SEED, whole_number
from wgpu_backend.text.grammar import Grammar

MOST_CHOICES = 128
MOST_STOP_TOKENS = 1024
# Each token has so many; the routes of OpenAI and Ollama allow 20.
MOST_LOGPROBS = 1000
# OpenAI's limit; a larger bias would exclude the token, or all others.
MOST_BIAS = 100.0
# The scale of a LoRA adapter.
MOST_SCALE = 1000.0
WhenFull = Literal["stop", "shift"]


class RequestFields(TypedDict, total=False):
    """The fields of a `Request` except its tokens, as keyword arguments."""

    options: Options
    max_tokens: int | None
    stop: str | Sequence[str]
    logprobs: int | None
    logit_bias: Mapping[int, float]
    when_full: WhenFull
    keep: int
    n: int
    ignore_eos: bool
    grammar: Grammar | None
    progress: bool
    sampled: bool
    prompt_logprobs: bool
    max_seconds: float | None
    min_tokens: int
    stop_tokens: Sequence[int]
    lora: Sequence[tuple[int, float]] | None
    placed: Sequence[Placed]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, with the options of its completion.

    Parameters
    ----------
    tokens : sequence of int
        The prompt.
    options : SamplingOptions or mapping
        Sampling options; a mapping uses Ollama's names.
    max_tokens : int or None
        Most tokens to make; None or negative for as many as the context holds, 0 to only read the
        prompt.
    stop : str or sequence of str
        Texts that end the answer; they are not returned.
    logprobs : int or None
        Return the model's log probabilities of the chosen tokens and of so many most likely tokens,
        0 to 1000; None for none.
    logit_bias : mapping of int to float
        Values added to the logits of tokens, -100 to 100; ``-inf`` excludes a token.
    when_full : str
        Behaviour at a full context: ``"stop"`` ends the answer, ``"shift"`` drops the older half of
        the tokens after `keep` and continues.
    keep : int
        Leading tokens that a shift keeps; -1 for the whole prompt.
    n : int
        Choices, 1 to 128; the prompt is computed once. Choice i has the seed ``seed + i``.
    ignore_eos : bool
        Continue after end tokens.
    grammar : Grammar or None
        Grammar of the answer. Its end ends the answer, also with `ignore_eos`.
    progress : bool
        Send events about the progress of reading the prompt.
    sampled : bool
        Return log probabilities after all sampling options, instead of the model's.
    prompt_logprobs : bool
        Return log probabilities of the prompt's tokens except its first, and of the token that
        ends the text. The whole prompt is computed, without cached prefixes.
    max_seconds : float or None
        End the answer so long after its first token, once it has a line break; None for no limit.
    min_tokens : int
        End tokens are excluded before so many tokens. Stop texts, and an end that the grammar
        forces, still end the answer.
    stop_tokens : sequence of int
        Further tokens that end the answer, also with `ignore_eos`; at most 1024.
    lora : sequence of (int, float) or None
        Scales of the model's LoRA adapters, by their index; adapters that are not listed have 0.
        None for the scales in use. Requests with other scales share neither prefixes nor steps.
    placed : sequence of Placed
        Pictures and sounds whose rows have stand-ins in `tokens`.

    Raises
    ------
    OptionError
        A value is of the wrong kind or out of range.
    """

    tokens: Sequence[int]
    options: SamplingOptions = field(default_factory=SamplingOptions)
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    when_full: WhenFull = "stop"
    keep: int = 0
    n: int = 1
    ignore_eos: bool = False
    grammar: Grammar | None = None
    progress: bool = False
    sampled: bool = False
    prompt_logprobs: bool = False
    max_seconds: float | None = None
    min_tokens: int = 0
    stop_tokens: Sequence[int] = ()
    lora: Sequence[tuple[int, float]] | None = None
    placed: Sequence[Placed] = ()

    def __post_init__(self) -> None:
        given = cast("Options | None", self.options)
        if not isinstance(given, SamplingOptions):
            self._set("options", check_options(given, None, None).options)
        if self.max_tokens is not None:
            self._set("max_tokens", whole_number("max_tokens", self.max_tokens))
        self._set("stop", tuple(stops(self.stop)))
        if self.logprobs is not None:
            self._set("logprobs", within("logprobs", self.logprobs, MOST_LOGPROBS, 0))
        elif self.prompt_logprobs:
            raise OptionError(
                "prompt_logprobs: needs logprobs too; 0 reports only the tokens themselves"
            )
        self._set("logit_bias", _biases(self.logit_bias))
        if self.when_full not in ("stop", "shift"):
            raise OptionError(f"when_full: {describe(self.when_full)}, needs 'stop' or 'shift'")
        self._set("keep", within("keep", self.keep, 1 << 24, -1))
        self._set("n", within("n", self.n, MOST_CHOICES))
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise OptionError(f"max_seconds: {describe(self.max_seconds)}, needs more than 0")
        self._set("min_tokens", within("min_tokens", self.min_tokens, 1 << 30, 0))
        self._set("stop_tokens", _stop_tokens(self.stop_tokens))
        if self.lora is not None:
            self._set("lora", _scales(self.lora))
        self._set("placed", tuple(self.placed))
        if not isinstance(cast("object", self.grammar), Grammar | None):
            raise OptionError(
                f"grammar: {describe(self.grammar)}, needs a Grammar, for example .json()"
            )

    @classmethod
    def of(cls, tokens: Sequence[int], **fields: Unpack[RequestFields]) -> Request:
        """Make a request from keyword arguments.

        Raises
        ------
        OptionError
            See `Request`.
        """
        return cls(tokens, **cast("dict[str, Any]", fields))

    def scales(self, own: Sequence[float]) -> tuple[float, ...] | None:
        """Return the scales of a model's adapters for this request; None for those in use.

        Raises
        ------
        OptionError
            The model has no adapter of an index.
        """
        if self.lora is None:
            return None
        wanted = [0.0] * len(own)
        for place, scale in self.lora:
            if place >= len(own):
                raise OptionError(f"lora: id {place}, the model has {len(own)} adapters")
            wanted[place] = scale
        return None if wanted == [*own] else tuple(wanted)

    def fitting(self, room: int, rows: int) -> list[int]:
        """Return the prompt's tokens, checked for a model.

        Parameters
        ----------
        room : int
            Positions in the context.
        rows : int
            Tokens in the vocabulary.

        Raises
        ------
        ContextFull
            There are no tokens, or more than the context holds.
        ModelError
            A token is not in the vocabulary.
        OptionError
            A token of `logit_bias` is not in the vocabulary.
        """
        tokens = self._checked_tokens(rows)
        self._require_biases_within(rows)
        if not tokens:
            raise ContextFull("the prompt has 0 tokens, needs at least 1")
        if len(tokens) > room:
            raise ContextFull(
                f"the prompt has {len(tokens)} tokens, the context holds {room}; "
                "shorten it, or load the model with a larger num_ctx",
                len(tokens),
                room,
            )
        return tokens

    def _checked_tokens(self, rows: int) -> list[int]:
        """Return the tokens, checked for a vocabulary; those of rows are stand-ins."""
        if not self.placed:
            return token_ids(self.tokens, rows)
        if self.prompt_logprobs:
            raise OptionError("prompt_logprobs: a prompt with pictures or sound has none")
        inside = {i for each in self.placed for run in each.runs for i in range(run.start, run.end)}
        token_ids([token for i, token in enumerate(self.tokens) if i not in inside], rows)
        return list(self.tokens)

    def _require_biases_within(self, rows: int) -> None:
        for token in self.logit_bias:
            if not 0 <= token < rows:
                raise OptionError(
                    f"logit_bias: {token} is not a token, the vocabulary has {rows}; "
                    "needs ids of this model's tokens"
                )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def choice_options(self, choice: int) -> SamplingOptions:
        """Return the options of a choice; choices differ in their seeds."""
        seed = self.options.seed
        if not choice or seed is None or seed == RANDOM_SEED:
            return self.options
        return replace(self.options, seed=(seed + choice) % (1 << 64))


def _stop_tokens(given: object) -> tuple[int, ...]:
    """Check stop tokens."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise OptionError(f"stop_tokens: {describe(given)}, needs a list of tokens")
    found = cast("Sequence[object]", given)
    if len(found) > MOST_STOP_TOKENS:
        raise OptionError(f"stop_tokens: {len(found)} tokens, needs at most {MOST_STOP_TOKENS}")
    return tuple(whole_number("stop_tokens", each) for each in found)


def _scales(given: object) -> tuple[tuple[int, float], ...]:
    """Check adapter scales, given as pairs of an index and a scale."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise OptionError(f"lora: {describe(given)}, needs pairs of an index and a scale")
    found: dict[int, float] = {}
    for each in cast("Sequence[object]", given):
        pair = cast("Sequence[object]", each) if isinstance(each, list | tuple) else ()
        if len(pair) != 2:
            raise OptionError(
                f"lora: {describe(cast('object', each))}, needs pairs of an index and a scale"
            )
        place, scale = within("lora", pair[0], 1 << 24, 0), pair[1]
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise OptionError(f"lora: scale {describe(scale)} of id {place}, needs a number")
        if not -MOST_SCALE <= scale <= MOST_SCALE:
            raise OptionError(
                f"lora: scale {scale} of id {place}, needs {-MOST_SCALE:g} to {MOST_SCALE:g}"
            )
        found[place] = float(scale)
    return tuple(found.items())


def _biases(given: object) -> dict[int, float]:
    """Check logit biases."""
    if not isinstance(given, Mapping):
        raise OptionError(f"logit_bias: {describe(given)}, needs a dict of tokens and numbers")
    found: dict[int, float] = {}
    for token, bias in cast("Mapping[object, object]", given).items():
        id_ = whole_number("logit_bias", token)
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise OptionError(f"logit_bias: {describe(bias)} for token {id_}, needs a number")
        if not (-MOST_BIAS <= bias <= MOST_BIAS or bias == -math.inf):
            raise OptionError(
                f"logit_bias: {bias} for token {id_}, needs {-MOST_BIAS:g} to {MOST_BIAS:g}, "
                "or -inf to rule it out"
            )
        found[id_] = float(bias)
    return found
