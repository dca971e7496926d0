"""Draft tokens from a smaller model, which follows the large one.

It samples with the same options and random numbers as the large model, so equal probabilities give
equal tokens. Its tokens stay on the device until all are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.engine.batching.drafts import Wanted
from wgpu_backend.engine.batching.loop import fair_shares
from wgpu_backend.engine.batching.prefix_cache import NUMBERS
from wgpu_backend.engine.batching.step import choice_inputs, make_work
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.runner import Head, Runner, TimedResult
from wgpu_backend.engine.step_sampler import GREEDY, MOST_AHEAD, NextTokens
from wgpu_backend.errors import CacheFull, OptionError
from wgpu_backend.ml.executor import Array
from wgpu_backend.nn.kvcache.layers import StateShape, iterate_entries
from wgpu_backend.ops.sampling.host import Plan


@dataclass(slots=True)
class Reading:
    """The state of a choice in the draft model.

    Parameters
    ----------
    wanted : int
        Number of draft tokens to make now.
    sequence : int
        Number of the sequence in the draft model's cache.
    tokens : list of int
        Tokens in that cache.
    """

    completion: Completion
    wanted: int = 0
    sequence: int = field(default_factory=lambda: next(NUMBERS))
    tokens: list[int] = field(default_factory=list[int])

    @property
    def missing(self) -> int:
        """Number of tokens that the draft model has not read."""
        return len(self.completion.tokens) - len(self.tokens)


class DraftModel:
    """A drafter that samples from a smaller model with the same vocabulary.

    Parameters
    ----------
    draft : LanguageModel
        The draft model, with as many contexts as the large one; may be on another device.
    model : LanguageModel
        The large model.

    Raises
    ------
    OptionError
        The vocabularies differ, or the draft's cache cannot remove single tokens.
    """

    def __init__(self, draft: LanguageModel, model: LanguageModel) -> None:
        require_cuttable("draft", draft)
        own, wanted = draft.tokenizer, model.tokenizer
        if own.vocab_size != wanted.vocab_size or own.eog_ids != wanted.eog_ids:
            raise OptionError(
                f"draft: {draft.backend.file.path} has {own.vocab_size} tokens that end with "
                f"{sorted(own.eog_ids)}, {model.backend.file.path} has {wanted.vocab_size} that "
                f"end with {sorted(wanted.eog_ids)}; use a draft of the same family"
            )
        self._model = draft
        self._readings: dict[Completion, Reading] = {}
        self._runner: Runner = draft.attach(self)

    # The interface for other users of the draft model.

    @property
    def active(self) -> int:
        """Number of choices that the draft model follows."""
        return len(self._readings)

    def give_room(self) -> bool:
        """Return False: nothing is kept only for reuse."""
        return False

    # The interface for the engine.

    def guesses(self, wanted: Wanted) -> Sequence[list[int]]:
        """Return the draft model's tokens; none for a choice whose prompt it has not read yet."""
        return self._model.alone(lambda: self._guesses(wanted))

    def forget(self, completion: Completion | None = None) -> None:
        """Drop the cache of a choice, or of all."""
        gone = list(self._readings) if completion is None else [completion]
        found = [self._readings.pop(each) for each in gone if each in self._readings]
        if found:
            self._model.alone(lambda: [self._runner.cache.remove(r.sequence) for r in found])

    def close(self) -> None:
        """Release the cache and detach from the draft model."""
        self.forget()
        self._model.detach(self, self._runner)

    def _guesses(self, wanted: Wanted) -> list[list[int]]:
        readings = [self._reading(each, count) for each, count in wanted]
        try:
            return self._make_tokens(readings)
        except CacheFull:
            # The choices are read again when there is room.
            for reading in readings:
                self.forget(reading.completion)
            return [[] for _ in wanted]

    def _reading(self, completion: Completion, count: int) -> Reading:
        """Return the state of a choice, cut back to the tokens that the choice still has."""
        reading = self._readings.setdefault(completion, Reading(completion))
        known = len(completion.tokens)
        same = min(_common(reading.tokens, completion.tokens), known - 1)
        if same < self._runner.cache.length(reading.sequence):
            same = self._runner.cache.remove(reading.sequence, same)
        del reading.tokens[same:]
        room = self._model.num_ctx - known
        reading.wanted = max(0, min(count, MOST_AHEAD - 1, room + 1)) if room >= 0 else 0
        return reading

    def _make_tokens(self, readings: Sequence[Reading]) -> list[list[int]]:
        """Read the missing tokens in one pass, then choose tokens, a pass each."""
        fits = [reading.missing if reading.wanted else 0 for reading in readings]
        shares = fair_shares(fits, self._runner.chunk)
        taken = [(r, share) for r, share in zip(readings, shares, strict=True) if share]
        ready = [reading for reading, share in taken if share == reading.missing]
        last = self._read_on(taken, ready) if taken else None
        for made in range(1, max((reading.wanted for reading in ready), default=0)):
            last = self._next([r for r in ready if r.wanted > made], made)
        slots = last.wait()[0] if last is not None and ready else None
        for reading, share in taken:
            end = len(reading.tokens) + share
            reading.tokens += reading.completion.tokens[len(reading.tokens) : end]
        return [
            self._tokens(r, slots) if slots is not None and r in ready else [] for r in readings
        ]

    def _read_on(self, taken: Sequence[tuple[Reading, int]], ready: list[Reading]) -> TimedResult:
        """Submit a pass over known tokens; choices that are read completely get a token."""
        parts = [
            (r, r.completion.tokens[len(r.tokens) : len(r.tokens) + share]) for r, share in taken
        ]
        return self._pass(parts, [r for r, _ in taken if r in ready], 0)

    def _next(self, readings: Sequence[Reading], made: int) -> TimedResult:
        """Submit a pass over the tokens that the former pass chose."""
        newest = [r.completion.sampler.references(made)[-1] for r in readings]
        return self._pass([(r, [t]) for r, t in zip(readings, newest, strict=True)], readings, made)

    def _pass(
        self, parts: Sequence[tuple[Reading, list[int]]], choosing: Sequence[Reading], made: int
    ) -> TimedResult:
        runner = self._runner
        works = [make_work(reading.sequence, tokens) for reading, tokens in parts]
        shape = runner.shape_of(works)
        plan = Plan.merge([GREEDY, *(r.completion.sampler.plan for r in choosing)])
        rows = [(i, _row(r, made)) for i, (r, _) in enumerate(parts) if r in choosing]
        head = NextTokens(plan, 0, runner.model, runner.token_slots)
        extra = choice_inputs(rows, plan, shape.outputs)
        return runner.run(works, Head("draft tokens", head), extra, shape)

    def _tokens(self, reading: Reading, slots: Array) -> list[int]:
        """Return the chosen tokens, and record all but the last as cached."""
        places = [-2 - each for each in reading.completion.sampler.references(reading.wanted)]
        found = [int(slots[place]) for place in places]
        found = found[: next((i for i, token in enumerate(found) if token < 0), len(found))]
        reading.tokens += found[:-1]
        return found


def _row(reading: Reading, made: int) -> dict[str, Array]:
    """Return the sampling inputs after `made` draft tokens."""
    sampler = reading.completion.sampler
    return {
        name: rows[-1:] for name, rows in sampler.draft_inputs(sampler.references(made)).items()
    }


def _common(have: list[int], wanted: list[int]) -> int:
    """Return the length of the common prefix."""
    if wanted[: len(have)] == have:
        return len(have)
    return next(
        (i for i, (a, b) in enumerate(zip(have, wanted, strict=False)) if a != b),
        min(len(have), len(wanted)),
    )


def require_cuttable(what: str, model: LanguageModel) -> None:
    """Raise if a model's cache cannot remove single tokens.

    Raises
    ------
    OptionError
        The model has recurrent states, which are kept at the ends of passes, or an encoder.
    """
    name = model.backend.file.path
    if any(isinstance(kept, StateShape) for _, kept in iterate_entries(model.model.cache_layers())):
        raise OptionError(
            f"{what}: {name} has recurrent layers, which cannot remove a rejected draft token; "
            "leave draft out, or use a model with attention only"
        )
    if model.model.prompt_encoder() is not None:
        raise OptionError(f"{what}: {name} is an encoder-decoder model; leave draft out")
