"""A completion: one choice of a request, from the queue to its last event."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.batching.constrained import Constrained, Masking
from wgpu_backend.engine.batching.generation import Mailbox
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import (
    Event,
    Finish,
    FinishReason,
    Reading,
    SlotStatus,
    TokenLogprob,
    Usage,
)
from wgpu_backend.engine.media import STAND_IN, Inserted
from wgpu_backend.engine.step_sampler import MOST_AHEAD, StepSampler
from wgpu_backend.engine.stop_texts import StopTexts
from wgpu_backend.engine.towers import Towers
from wgpu_backend.errors import BackendError, GrammarError
from wgpu_backend.nn.kvcache.saving import Saved
from wgpu_backend.ops.sampling.host import Breakers, Spelling, largest
from wgpu_backend.ops.sampling.host.candidates import Candidates
from wgpu_backend.text.grammar import Matcher, apply_mask
from wgpu_backend.text.grammar.masks import Mask
from wgpu_backend.text.tokenizer import Tokenizer

Outcome = Literal["finished", "cancelled", "failed"]
# So many tokens in a row must come without forced ones before a pass is submitted ahead of a token
# that a grammar constrains. A forced token would waste that pass, and most forced tokens stand
# between short texts.
CALM = 4


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The properties of a model that its completions need.

    Parameters
    ----------
    name : str
        Name of the model, for messages.
    vocabulary : int
        Number of logits.
    num_ctx : int
        Positions in a context.
    spelling : Spelling
        Finds the tokens that spell a text.
    towers : Towers or None
        Towers for pictures and sounds.
    """

    name: str
    tokenizer: Tokenizer
    vocabulary: int
    num_ctx: int
    spelling: Spelling
    towers: Towers | None = None


@dataclass(slots=True)
class Ticket:
    """A submitted request.

    Parameters
    ----------
    tokens : list of int
        The prompt.
    matcher : Future of Matcher, or None
        The matcher in its initial state, once the grammar is compiled.
    breakers : Future of Breakers, or None
        The DRY sequence breakers, once their tokens are found.
    scales : tuple of float or None
        Scales of the model's adapters, if they differ from those in use.
    stepwise : bool
        Whether each token has a pass and an event of its own. Otherwise tokens that a grammar
        forces cost no pass, and a token whose text is held back sends no event.
    free_places : callable
        Takes a number of choices that end, and frees their places in the engine's queue.
    """

    id: int
    request: Request
    tokens: list[int]
    mailbox: Mailbox
    matcher: Future[Matcher] | None = None
    breakers: Future[Breakers | None] | None = None
    scales: tuple[float, ...] | None = None
    stepwise: bool = False
    free_places: Callable[[int], object] = lambda _: None
    submitted: float = field(default_factory=time.perf_counter)

    @property
    def waits_for(self) -> list[Future[Matcher] | Future[Breakers | None]]:
        """Futures that other threads complete for the request."""
        return [each for each in (self.matcher, self.breakers) if each is not None]


class Completion:
    """A choice of a request, from the queue to its end.

    Parameters
    ----------
    before : Completion or None
        The request's first choice, which computes the prompt for the others.

    Attributes
    ----------
    tokens : list of int
        The prompt and the known tokens after it.
    sent : int
        Positions that are in the cache or in flight.
    ahead : int
        Tokens in flight: chosen by passes that have not been read.
    sequence : int
        Number of the sequence in the cache; -1 while the choice waits for a slot.
    outcome : str or None
        Outcome of the choice; None while it runs.
    guessed : list of int
        Draft tokens after `tokens` that the pass in flight verifies.
    trust : int
        Number of draft tokens that are worth verifying; grows when all were accepted.
    constrained : bool
        Whether the choice has a grammar: each token must be known before the next is chosen.
    is_undecided : bool
        Whether a pass is in flight whose token waits for the mask of the grammar.
    paused : bool
        Whether the choice gave up its positions because the cache was full.
    saved : Saved or None
        The saved cache content of a paused choice, if it continues from it; `sent` includes it.
    judged : int
        Prompt positions whose next token has a log probability, or one in flight.
    inserted : Inserted or None
        Rows of pictures and sounds in the prompt.
    confirmed : int
        Positions whose passes were read, of a choice that is `Ticket.stepwise`.
    """

    def __init__(
        self,
        ticket: Ticket,
        choice: int,
        model: ModelInfo,
        before: Completion | None = None,
    ) -> None:
        self.ticket = ticket
        self.request = ticket.request
        self.choice = choice
        self.before = before
        self.tokens = list(ticket.tokens)
        self.sequence, self.slot = -1, -1
        self.sent = self.ahead = self.made = self.cached = self._calm = 0
        self.guessed: list[int] = []
        self.trust = MOST_AHEAD
        self.guesses = self.right_guesses = self.drafts = 0
        self.paused = False
        self.saved: Saved | None = None
        self.judged = self.confirmed = 0
        self.inserted: Inserted | None = None
        if ticket.request.placed and model.towers is not None:
            self.inserted = model.towers.insert(ticket.request.placed)
        self._prompt = len(self.tokens)
        self.outcome: Outcome | None = None
        # Set at the end.
        self.usage = Usage()
        self._room = model.num_ctx
        self._limit = _limit(ticket.request, model.num_ctx)
        self._vocabulary = model.vocabulary
        self._tokenizer = model.tokenizer
        self._detokenizer = model.tokenizer.stream()
        self._texts = StopTexts(ticket.request.stop)
        self._pending: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._ended_by_token = self._has_lines = False
        self._seat_time = self._first = 0.0
        self._bias = _bias(ticket.request)
        self._is_changed = bool(self._bias) or ticket.request.min_tokens > 0
        self._stops_at = frozenset(ticket.request.stop_tokens)
        self._ends = self._stops_at | model.tokenizer.eog_ids
        if not ticket.request.ignore_eos:
            self._stops_at = self._ends
        self.constrained, self.is_undecided = ticket.matcher is not None, False
        self._scores_prompt = ticket.request.prompt_logprobs and not choice
        self._matcher: Matcher | None = None
        self._masking: Masking | None = None

    @property
    def finished(self) -> bool:
        """Return whether the choice has ended, with any outcome."""
        return self.outcome is not None

    @property
    def away(self) -> bool:
        """Return whether the choice is currently not in the cache."""
        return self.paused or self.saved is not None

    @property
    def wants_logits(self) -> bool:
        """Return whether the logits must be read back."""
        return self.sampler.on_host or self.request.logprobs is not None

    @property
    def judges_prompt(self) -> bool:
        """Return whether the next pass needs logits of every position, for `prompt_logprobs`."""
        return self._scores_prompt and self.sent < self._prompt

    def judging(self, count: int) -> range:
        """Return those of the next `count` positions whose logits score a token of the prompt."""
        if not self.judges_prompt:
            return range(0)
        return range(self.judged, min(self.sent + count, len(self.ticket.tokens) - 1))

    def send_prompt_logprobs(self, first: int, logits: NDArray[np.float32]) -> None:
        """Send an event with log probabilities of prompt tokens.

        Parameters
        ----------
        first : int
            Position of the first row.
        logits : (positions, vocabulary), f32

        Raises
        ------
        BackendError
            The logits are NaN or infinite.
        """
        count = self.request.logprobs
        if self.finished or count is None:
            return
        found: list[TokenLogprob] = []
        for position, row in enumerate(logits, first + 1):
            if not np.isfinite(row.max()):
                raise BackendError(f"prompt_logprobs: logits of token {position} are not finite")
            token = self.ticket.tokens[position]
            found.append(token_logprob(row, token, count, self._tokenizer))
        self.ticket.mailbox.put(Event(self.choice, "", prompt_logprobs=tuple(found)))

    @property
    def shareable(self) -> int:
        """The number of cached positions that were computed as part of a prompt."""
        return min(self.sent, self._prompt)

    @property
    def ready(self) -> bool:
        """Return whether the choice may get a slot: its futures and shared prompt are done."""
        first = self.before
        if any(each.cancelled() or not each.done() for each in self.ticket.waits_for):
            # The engine cancels the futures when it closes.
            return self.finished
        return first is None or first.finished or first.sent >= len(self.ticket.tokens)

    def seat(self, slot: int, sequence: int, reused: int) -> None:
        """Begin in a slot, with the cached prefix of the tokens."""
        self.slot, self.sequence = slot, sequence
        self._prompt = len(self.tokens)
        self.sent = self.cached = self.confirmed = reused
        found = self.ticket.breakers
        self.sampler = StepSampler(
            self.request.choice_options(self.choice),
            self._vocabulary,
            slot * MOST_AHEAD,
            on_host=self._is_changed,
            breakers=None if found is None else found.result(),
        )
        self.sampler.start(self._text_tokens)
        if self.ticket.matcher is not None and self._matcher is None:
            self._matcher = self.ticket.matcher.result().copy()
        self._seat_time = time.perf_counter()
        self.send_progress(reused, 0.0)

    @property
    def _text_tokens(self) -> list[int]:
        """Return the tokens without the placeholders of media rows, which penalties ignore."""
        if self.inserted is None:
            return self.tokens
        return [token for token in self.tokens if token < STAND_IN]

    def send_progress(self, position: int, seconds: float | None = None) -> None:
        """Send a progress event for the prompt, if the request wants them."""
        if not self.request.progress or self._first or self.finished:
            return
        spent = time.perf_counter() - self._seat_time if seconds is None else seconds
        reading = Reading(min(position, self._prompt), self.cached, self._prompt, spent)
        self.ticket.mailbox.put(Event(self.choice, "", reading=reading))

    @property
    def refusal(self) -> Exception | None:
        """Error of compiling the grammar or of finding the DRY breakers; None if none."""
        made = [each for each in self.ticket.waits_for if each.done() and not each.cancelled()]
        found = next((error for each in made if (error := each.exception()) is not None), None)
        if found is None or isinstance(found, Exception):
            return found
        return GrammarError(f"grammar: the compiler failed: {found}")

    def begin_mask(self, constrained: Constrained) -> Masking:
        """Start computing the mask for the token of the next pass."""
        assert self._matcher is not None
        self._masking = Masking(self._matcher, constrained)
        return self._masking

    @property
    def newest_mask(self) -> Mask | None:
        """The last mask that was made; the next is often the same, as in a long text."""
        return None if self._masking is None else self._masking.mask

    @property
    def pending(self) -> int:
        """Number of tokens for the next pass; 0 if the choice must wait."""
        if self.finished or self.away:
            return 0
        known = len(self.tokens) - self.sent
        if not self.ahead:
            # Not beyond a picture that its tower has not read yet.
            return known if self.inserted is None else self.inserted.reach(self.sent, known)
        # With a token in flight it can go on only if that token is all that is missing, and if
        # the device can choose the next one.
        wanted = self._limit < 0 or self.made + self.ahead < self._limit
        waits = self.sampler.on_host or (self.constrained and not self._is_calm)
        return int(wanted and known + self.ahead == 1 and not waits)

    @property
    def needs_device(self) -> bool:
        """Return whether a pass for the choice is in flight, or could be submitted."""
        return not self.finished and (self.ahead > 0 or self.pending > 0)

    @property
    def _is_calm(self) -> bool:
        """Return whether the next pass may be submitted before a constrained token is known."""
        return self.ahead == 1 and not self.is_undecided and self._calm >= CALM

    @property
    def needs_token(self) -> bool:
        """Return whether the token after all positions in the cache or in flight is unknown."""
        return not self.finished and len(self.tokens) == self.sent

    def drop_token(self) -> None:
        """Count the undecided pass as one that chooses no token."""
        self.ahead -= 1
        self.is_undecided = False

    @property
    def pending_prompt(self) -> int:
        """Number of `pending` tokens that belong to the prompt."""
        return max(0, min(self.pending, self._prompt - self.sent))

    def part(self, count: int) -> Sequence[int]:
        """Return the next pass's tokens: known and draft ones, or a reference to the newest."""
        if self.ahead:
            return (self.sampler.newest,)
        return [*self.tokens[self.sent : self.sent + count], *self.guessed]

    @property
    def repeatable(self) -> int:
        """The most decode steps that can be queued now before a token is read back."""
        if self.pending != 1 or self.pending_prompt or self.sampler.on_host or self.constrained:
            return 1
        left = self._room - self.sent
        return left if self._limit < 0 else min(left, self._limit - self.made - self.ahead)

    @property
    def guessable(self) -> int:
        """The most draft tokens that the next pass can verify after the newest token."""
        one = len(self.tokens) - self.sent == 1 and not self.ahead
        if self.inserted is not None or not one or self.finished or self.away:
            return 0
        if self.sampler.on_host or self.constrained:
            return 0
        left = self._room - len(self.tokens)
        if self._limit >= 0:
            left = min(left, self._limit - self.made - 1)
        return max(0, min(self.trust, left))

    def take(self, slots: NDArray[np.int32], logits: NDArray[np.float32] | None) -> None:
        """Take the token of the oldest unread pass, and the accepted draft tokens.

        Parameters
        ----------
        slots : (slots,), i32
            Chosen tokens by slot.
        logits : (1 + guesses, vocabulary), f32, or None
            The logits, if they are needed.

        Raises
        ------
        BackendError
            The logits are NaN or infinite.
        """
        # Also of a choice that has ended, whose steps in flight still come back.
        self.ahead -= 1
        guessed, self.guessed = self.guessed, []
        if self.finished:
            return
        if guessed:
            tokens = self._verify(slots, guessed)
        elif self.sampler.on_host and logits is not None:
            changed = self._choices(logits[0])
            tokens = [self.sampler.token([changed[None]])]
        else:
            tokens = [self.sampler.token([slots])]
        self.confirmed = self.confirmed + 1 if self._first else self._prompt
        self._first = self._first or time.perf_counter()
        for row, token in enumerate(tokens):
            if not self.finished:
                self._judge(token, None if logits is None else logits[row])
                self._took(token)

    def _verify(self, slots: NDArray[np.int32], guessed: list[int]) -> list[int]:
        """Return the tokens of a pass over draft tokens; `sent` counts the accepted ones."""
        found = self.sampler.verify(slots, guessed)
        right = len(found) - 1
        self.guesses, self.drafts = self.guesses + len(guessed), self.drafts + 1
        self.right_guesses += right
        # Draft tokens cost columns: after a wrong one as many are tried as were right.
        self.trust = MOST_AHEAD if right == len(guessed) else max(1, right)
        self.sent = min(self.sent, len(self.tokens) + right)
        return found

    def _judge(self, token: int, logits: NDArray[np.float32] | None) -> None:
        """Add a token's log probability, if the request wants it."""
        count = self.request.logprobs
        if count is not None and logits is not None:
            changed = self._choices(logits) if self.request.sampled else None
            counted = self._text_tokens
            chances = None if changed is None else self.sampler.chances(changed, counted)
            self._logprobs.append(token_logprob(logits, token, count, self._tokenizer, chances))

    def _took(self, token: int) -> None:
        if self._limit == 0:
            self.end("length")
        elif token in self._ends and (self._matcher or token in self._stops_at):
            self._ended_by_token = self.request.prompt_logprobs
            self.end("stop")
        else:
            if self._matcher is not None:
                self._matcher.take(token)
            self._add(token)
            self._add_forced()

    def _add(self, token: int) -> None:
        self.tokens.append(token)
        self._pending.append(token)
        self.made += 1
        text = self._texts.push(self._detokenizer.push(token))
        if self._texts.found is not None:
            self.end("stop", text)
        elif self.made == self._limit or self._is_late(text):
            # An answer that its grammar ends is whole, though no more tokens are allowed.
            self.end("stop" if self._matcher and self._matcher.is_ended else "length", text)
        elif text or self.ticket.stepwise:
            self._put(text)

    def _is_late(self, text: str) -> bool:
        """Return whether `max_seconds` is over and the answer has a line break."""
        most = self.request.max_seconds
        if most is None:
            return False
        self._has_lines = self._has_lines or "\n" in text
        return self._has_lines and time.perf_counter() - self._first > most

    def _add_forced(self) -> None:
        """Add the tokens that the grammar forces, without a pass of their own."""
        matcher = self._matcher
        if matcher is None or self.finished:
            return
        # Log probabilities need the logits of every token.
        steps = self.ticket.stepwise or self.request.logprobs is not None
        room = 0 if steps else self._room - len(self.tokens)
        found = matcher.forced_tokens()[:room] if room > 0 else []
        self._calm = 0 if found else self._calm + 1
        for forced in found:
            if not self.finished:
                matcher.take(forced)
                self.sampler.put(forced)
                self._add(forced)
        if matcher.is_ended:
            self.end("stop")

    def end(self, reason: FinishReason, text: str = "", *, context_full: bool = False) -> None:
        """Send the last event; safe to call again."""
        if self.finished:
            return
        self.outcome = "cancelled" if reason == "cancelled" else "finished"
        text += self._texts.push(self._detokenizer.flush()) + self._texts.flush()
        self.usage = self._usage()
        # First, so that a caller who reads the end can submit the next request at once.
        self.ticket.free_places(1)
        self._put(text, Finish(reason, self._texts.found, context_full, self.usage))

    def _put(self, text: str, finish: Finish | None = None) -> None:
        tokens = tuple(self._pending)
        # The end token's log probability is sent only if the prompt's are wanted as well.
        logprobs = tuple(self._logprobs[: len(tokens) + self._ended_by_token])
        self._pending.clear()
        self._logprobs.clear()
        self.ticket.mailbox.put(Event(self.choice, text, tokens, logprobs, finish))

    def _usage(self) -> Usage:
        now = time.perf_counter()
        seated = self._seat_time or now
        first = self._first or now
        return Usage(
            len(self.ticket.tokens),
            self.cached,
            self.made,
            seated - self.ticket.submitted,
            first - seated,
            now - first,
        )

    def _choices(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Apply biases, the minimum length and the grammar to logits."""
        biased = self._apply_bias(logits)
        if self.made >= self.request.min_tokens:
            return self._apply_mask(biased)
        longer = biased.copy()
        longer[[each for each in self._ends if each < len(longer)]] = -np.inf
        longer = self._apply_mask(longer)
        # If the grammar allows only an end token, it takes precedence over the minimum length.
        return longer if np.isfinite(longer).any() else self._apply_mask(biased)

    def _apply_bias(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._bias:
            return logits
        ids, values = self._bias
        changed = logits.copy()
        changed[ids] += values
        return changed

    def _apply_mask(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._masking is None:
            return logits
        mask = self._masking.wait()
        if isinstance(mask, BackendError):
            raise mask
        return apply_mask(logits, mask)

    @property
    def going(self) -> tuple[int, int]:
        """The range of positions that a context shift drops: first, and one past the last."""
        keep = self.request.keep if self.request.keep >= 0 else len(self.ticket.tokens)
        if self._tokenizer.add_bos and self.tokens[0] == self._tokenizer.bos_id:
            keep = max(keep, 1)
        keep = max(0, min(keep, self._room - 2))
        return keep, keep + max(1, (self._room - keep) // 2)

    def drop(self, begin: int, end: int, length: int) -> None:
        """Remove dropped positions, and set the number of cached ones."""
        del self.tokens[begin:end]
        self._prompt -= max(0, min(end, self._prompt) - begin)
        self.sent = length

    def status(self) -> SlotStatus:
        """Return the progress of the choice."""
        prompt = len(self.ticket.tokens)
        return SlotStatus(self.ticket.id, self.choice, prompt, self.sent, self.made)


def _limit(request: Request, room: int) -> int:
    """Return the most tokens to make; negative for no limit except the context.

    Requests that shift are limited to 10 contexts, as in Ollama, against endless answers.
    """
    limit = -1 if request.max_tokens is None else request.max_tokens
    return 10 * room if limit < 0 and request.when_full == "shift" else limit


Bias = tuple[NDArray[np.int64], NDArray[np.float32]]


def _bias(request: Request) -> Bias | None:
    if not request.logit_bias:
        return None
    ids = np.array(list(request.logit_bias), np.int64)
    return ids, np.array(list(request.logit_bias.values()), np.float32)


def token_logprob(
    logits: NDArray[np.float32],
    token: int,
    count: int,
    tokenizer: Tokenizer,
    chances: Candidates | None = None,
) -> TokenLogprob:
    """Compute the log probabilities of a token and of the most likely tokens, as a softmax.

    Parameters
    ----------
    logits : (vocabulary,), f32
    count : int
        Number of most likely tokens to return; ties are ordered by id.
    chances : Candidates or None
        Candidates after all sampling options, to use their probabilities; other tokens have
        minus infinity. None for those of the model.
    """
    if chances is None:
        values = logits.astype(np.float64)
        values -= values.max()
        values -= np.log(np.exp(values).sum())
        top = largest(logits, count).ids if count else ()
    else:
        values = np.full(len(logits), -np.inf)
        values[chances.ids] = chances.logits
        top = chances.first(count).ids

    def one(id_: int, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        piece = tokenizer.token_bytes(id_) if id_ < tokenizer.vocab_size else b""
        return TokenLogprob(id_, float(values[id_]), piece, top)

    return one(token, tuple(one(int(id_)) for id_ in top))
