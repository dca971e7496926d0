"""What an engine gives: events while an answer is made, and the whole of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was.

    Parameters
    ----------
    token : int
    logprob : float
        Natural logarithm of its probability at temperature 1, before any option.
    piece : bytes
        What the token stands for; not always whole characters.
    top : tuple of TokenLogprob
        The most likely tokens at its place, most likely first, as many as were asked for.
    """

    token: int
    logprob: float
    piece: bytes
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a choice took.

    Parameters
    ----------
    prompt_tokens : int
    cached_tokens : int
        Those of the prompt that had been computed before.
    completion_tokens : int
        Tokens made, without one that ended the text.
    queue_seconds, prompt_seconds, seconds : float
        Until it had a slot; from there to its first token; from there to its end.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float = 0.0
    prompt_seconds: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """How a choice ended.

    Parameters
    ----------
    reason : str
        ``stop`` (an end token or a stop text), ``length`` (as many tokens as asked for, or as the
        context holds) or ``cancelled``.
    stop : str or None
        The stop text that ended it.
    context_full : bool
        Whether it ended because the context is full.
    usage : Usage
    """

    reason: FinishReason
    stop: str | None
    context_full: bool
    usage: Usage


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a prompt was read.

    Parameters
    ----------
    read, cached, total : int
        Tokens of it that were, those of them that had been computed before, and all.
    seconds : float
        Since it had a slot.
    """

    read: int
    cached: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Event:
    """News of one choice.

    Parameters
    ----------
    choice : int
    text : str
        Whole characters, and nothing of a stop text.
    tokens : tuple of int
        Tokens made since the last event; their text may be held until it is known to be no stop
        text.
    logprobs : tuple of TokenLogprob
        One for each of them, where they were asked for.
    finish : Finish or None
        Set in the last event of a choice.
    reading : Reading or None
        Set in events before the first token, which come where they were asked for.
    prompt_logprobs : tuple of TokenLogprob
        Of tokens of the prompt, in events of the first choice before its first token.
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
    """One whole answer; see `Event`."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: Finish
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """All answers to a request.

    Parameters
    ----------
    choices : tuple of Choice
    """

    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def finish(self) -> Finish:
        """How the first choice ended."""
        return self.choices[0].finish

    @property
    def usage(self) -> Usage:
        """What the request took: the prompt once, tokens of all choices, the longest times."""
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
        """Put the events of a request together; each choice has its last one."""
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
    """A choice that is being made.

    Parameters
    ----------
    request, choice : int
    prompt_tokens : int
    computed_tokens : int
        Positions in the cache.
    completion_tokens : int
    """

    request: int
    choice: int
    prompt_tokens: int
    computed_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What an engine does now, and what it has done.

    Parameters
    ----------
    slots : tuple of SlotStatus or None
        None for a free one.
    queued : int
        Choices that wait for a slot.
    kept_sequences, kept_tokens : int
        What is kept of earlier requests for reuse; tokens that several share count for each.
    steps : int
        Passes so far.
    requests, finished, cancelled, failed : int
        Requests so far; choices by how they ended.
    prompt_tokens, cached_tokens, completion_tokens : int
        Sums over choices that have ended.
    guessed_tokens, right_guesses : int
        Tokens that a draft guessed for them, and those that were right.
    prompt_seconds, seconds : float
        Sums over them, see `Usage`.
    longest : int
        Tokens of the longest of them, prompt and answer.
    drafts : int
        How often a draft guessed for them.
    busy : int
        Sum over passes of the slots that took part.
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
