"""Results of an engine: events while an answer is generated, and the whole answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probability of a token.

    Parameters
    ----------
    logprob : float
        Natural logarithm of the probability at temperature 1, before any sampling option.
    piece : bytes
        Bytes of the token; not always whole characters.
    top : tuple of TokenLogprob
        The requested number of most likely tokens at this position, most likely first.
    """

    token: int
    logprob: float
    piece: bytes
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens and time of a choice.

    Parameters
    ----------
    cached_tokens : int
        Prompt tokens that were in the cache.
    completion_tokens : int
        Generated tokens, without the end token.
    queue_seconds, prompt_seconds, seconds : float
        Time in the queue; from there to the first token; from there to the end.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float = 0.0
    prompt_seconds: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a choice.

    Parameters
    ----------
    reason : str
        ``stop`` (an end token or a stop text), ``length`` (the token limit or a full context) or
        ``cancelled``.
    stop : str or None
        The stop text that ended the choice.
    context_full : bool
        Whether the choice ended because the context is full.
    """

    reason: FinishReason
    stop: str | None
    context_full: bool
    usage: Usage


@dataclass(frozen=True, slots=True)
class Reading:
    """The progress of reading a prompt.

    Parameters
    ----------
    read, cached, total : int
        Tokens read so far, tokens from the cache, and all tokens of the prompt.
    seconds : float
        Time since the choice had a slot.
    """

    read: int
    cached: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Event:
    """An update of one choice.

    Parameters
    ----------
    text : str
        New text: whole characters, without stop texts.
    tokens : tuple of int
        Tokens generated since the last event; their text may be held back while it may be part of
        a stop text.
    logprobs : tuple of TokenLogprob
        One for each token, if requested.
    finish : Finish or None
        The end, in the last event of a choice.
    reading : Reading or None
        Progress of the prompt, in events before the first token, if requested.
    prompt_logprobs : tuple of TokenLogprob
        Log probabilities of prompt tokens, in events of the first choice before its first token.
    """

    choice: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    reading: Reading | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A whole answer; see `Event`."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: Finish
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """All answers to a request."""

    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def finish(self) -> Finish:
        """The end of the first choice."""
        return self.choices[0].finish

    @property
    def usage(self) -> Usage:
        """Usage of the request: the prompt once, tokens of all choices, the longest times."""
        # Choices share the prompt, which was read once.
        each = [choice.finish.usage for choice in self.choices]
        return Usage(
            each[0].prompt_tokens,
            each[0].cached_tokens,
            sum(usage.completion_tokens for usage in each),
            each[0].queue_seconds,
            each[0].prompt_seconds,
            max(usage.seconds for usage in each),
        )

    @classmethod
    def of(cls, events: Iterable[Event], choices: int) -> Result:
        """Collect the events of a request; each choice must have its last event."""
        made: list[list[Event]] = [[] for _ in range(choices)]
        for event in events:
            made[event.choice].append(event)
        return cls(tuple(map(_choice, made)))


def _choice(events: list[Event]) -> Choice:
    finish = events[-1].finish
    assert finish is not None
    return Choice(
        "".join(event.text for event in events),
        tuple(token for event in events for token in event.tokens),
        tuple(logprob for event in events for logprob in event.logprobs),
        finish,
        tuple(logprob for event in events for logprob in event.prompt_logprobs),
    )


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The status of a running choice.

    Parameters
    ----------
    computed_tokens : int
        Tokens in the cache.
    """

    request: int
    choice: int
    prompt_tokens: int
    computed_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The state and the counters of an engine.

    Parameters
    ----------
    slots : tuple of SlotStatus or None
        Status of each slot; None for a free one.
    queued : int
        Choices that wait for a slot.
    kept_sequences, kept_tokens : int
        Sequences and tokens in the prefix cache; shared tokens count once for each sequence.
    steps : int
        Passes so far.
    requests, finished, cancelled, failed : int
        Requests so far; choices by outcome.
    prompt_tokens, cached_tokens, completion_tokens : int
        Sums over choices that have ended.
    guessed_tokens, right_guesses : int
        Draft tokens of these choices, and the accepted ones.
    prompt_seconds, seconds : float
        Sums over these choices; see `Usage`.
    longest : int
        Tokens of the longest choice, prompt and answer.
    drafts : int
        Passes that verified draft tokens.
    busy : int
        Sum over passes of the active slots.
    """

    slots: tuple[SlotStatus | None, ...]
    queued: int = 0
    kept_sequences: int = 0
    kept_tokens: int = 0
    steps: int = 0
    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    guessed_tokens: int = 0
    right_guesses: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    longest: int = 0
    drafts: int = 0
    busy: int = 0
