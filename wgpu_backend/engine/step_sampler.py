"""Sampling of one sequence, on the device if the options allow it, else on the host.

A step's inputs may be requested before the tokens of earlier steps were read; they then contain
references to the slots on the device that will hold these tokens::

    inputs ─ submit ─ advance ─ inputs ─ submit ─ advance ─ … ─ token ─ token

A step may also choose the tokens after several draft tokens at once. Each choice uses the random
number of its position, so the accepted tokens are those that single steps would choose::

    draft_inputs ─ submit ─ verify

The graph that `build` records serves all tokens, seeds and options that its plan covers; only the
arrays of a step's inputs differ. The tokens stay on the device, in slots of a state that steps
share. So a step can be submitted before the host knows the previous token: it refers to the slot
instead, with `wgpu_backend.ops.sampling.sampling.reference`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F32, I32, U32
from wgpu_backend.errors import BackendError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.model import Model
from wgpu_backend.ops.sampling.host import (
    Breakers,
    Plan,
    Sampler,
    SamplingOptions,
    SamplingParams,
    make_sampling_params,
    plan,
)
from wgpu_backend.ops.sampling.host.candidates import Candidates
from wgpu_backend.ops.sampling.host.plan import HOST
from wgpu_backend.ops.sampling.masking import mask_logits
from wgpu_backend.ops.sampling.sampling import reference, resolve_tokens, sample_into
from wgpu_backend.text.grammar import mask_words

SAMPLING, HISTORY, DRAWS = "sampling_params", "sampling_history", "sampling_draws"
# A slot outside every state: the token is not written.
NOWHERE = (1 << 32) - 1


def build(context: Context, logits: Tensor, plan: Plan, token_slots: Tensor) -> Tensor:
    """Add the ops that choose a token for each row of logits.

    Parameters
    ----------
    logits : (rows, vocab), f32
    plan : Plan
        A plan for the device.
    token_slots : (slots,), i32
        State that receives each row's token in its slot.

    Returns
    -------
    (slots,), i32
        `token_slots` after the write, for `check_tokens`.

    Raises
    ------
    BackendError
        The plan is to sample on the host.
    """
    if plan.kind == "host":
        raise BackendError(
            "sampling graph: these options are sampled on the host; read the logits back"
        )
    rows = logits.dim(0)
    sampling = context.input(SAMPLING, (rows, len(SamplingParams._fields)), F32)
    draws = context.input(DRAWS, (rows, 2), U32)
    if plan.history:
        history = resolve_tokens(context.input(HISTORY, (rows, plan.history), I32), token_slots)
        logits = logits.penalise(history, sampling)
    chosen = sample_into(token_slots, logits, logits.top_k(k=plan.candidates), sampling, draws)
    return cast("Tensor", chosen)


def apply_masks(context: Context, logits: Tensor) -> Tensor:
    """Add the op that rules out tokens, (rows, vocab), by masks that are an input."""
    rows, vocabulary = logits.dim(0), logits.dim(1)
    given = context.input(MASK, (rows, mask_words(vocabulary)), U32)
    return cast("Tensor", mask_logits(logits, given))


def check_tokens(tokens: Array) -> list[int]:
    """Convert tokens that the device chose, and check them.

    Parameters
    ----------
    tokens : (rows,), int32
        Content of the token slots; -1 marks logits that are not finite.

    Raises
    ------
    BackendError
        The logits of one were NaN or infinite.
    """
    found = [int(token) for token in tokens]
    if min(found, default=0) < 0:
        raise BackendError(
            f"sample: the largest logit of row {found.index(-1)} is not finite, needs finite; "
            "if device 'cpu' reports it, too, the model's file is damaged"
        )
    return found


NEUTRAL = make_sampling_params(SamplingOptions(temperature=0.0, repeat_last_n=0)).array()


# Tokens in flight at most: each has a slot of its own.
MOST_AHEAD = 8
PICKED, KEPT, MASK = "picked_rows", "kept_rows", "token_mask"
GREEDY = Plan("greedy", 1, 0)


@dataclass(frozen=True, slots=True)
class NextTokens:
    """The head of a pass: a token for each row, and the logits of some rows.

    Heads of equal plans are equal, so that all batches with such options share recorded graphs.

    Parameters
    ----------
    plan : Plan
        Sampling plan that covers all rows whose token the pass chooses; the host's if none is.
    picked : int
        Number of rows of logits to read back; 0 for none.
    token_slots : (slots,), i32
        State that receives the chosen tokens.
    kept : (rows, vocabulary), f32, or None
        State for logits that wait for masks.
    keeps : bool
        Whether `kept` is set; part of the comparison in its place.
    masks : bool
        Whether tokens are chosen under masks; the kept logits and those read back are not masked.
    """

    plan: Plan
    picked: int
    model: Model
    token_slots: Tensor = field(compare=False)
    kept: Tensor | None = field(default=None, compare=False)
    keeps: bool = False
    masks: bool = False

    def __call__(self, batch: Batch, hidden: Tensor) -> list[Tensor]:
        """Build the choice of tokens, which comes first, and the logits, which come last."""
        logits = self.model.logits(hidden)
        made: list[Tensor] = []
        if self.plan.kind != "host":
            allowed = apply_masks(batch.context, logits) if self.masks else logits
            made.append(build(batch.context, allowed, self.plan, self.token_slots))
        if self.kept is not None:
            places = batch.context.input(KEPT, (logits.dim(0),), I32)
            # One value of the result is enough to have the write in the graph.
            made.append(self.kept.set_rows(logits, places)[:1, :1])
        if self.picked and logits.dim(0) == 1:
            made.append(logits)
        elif self.picked:
            made.append(logits.rows(batch.context.input(PICKED, (self.picked,), I32)))
        return made


class StepSampler:
    """A sampler of one sequence, on the device if the options allow it, else on the host.

    Parameters
    ----------
    vocabulary : int
        Number of logits.
    first_place : int
        The first of this sequence's `MOST_AHEAD` slots. Sequences that share a runner need
        separate slots, since each step reads the token of the step before it there.
    on_host : bool
        Always choose on the host, because the logits are changed there.
    breakers : Breakers or None
        See `Sampler`.

    Attributes
    ----------
    on_host : bool
        Whether a step's token must be read before the next step can be submitted.
    newest : int
        The last token, or the reference to it while it is in flight.
    """

    def __init__(
        self,
        options: SamplingOptions,
        vocabulary: int,
        first_place: int = 0,
        *,
        on_host: bool = False,
        breakers: Breakers | None = None,
    ) -> None:
        self._sampler = Sampler(options, vocabulary, breakers)
        self._plan = HOST if on_host else plan(options)
        self._first_place = first_place
        self.on_host = self._plan.kind == "host"
        self._history: list[int] = []
        self.newest = -1
        self._read = self._advanced = 0
        # The last tokens in a ring; penalties count them, so their order does not matter.
        self._window = options.repeat_last_n if self._plan.history else 0
        self._recent = np.full((1, self._plan.history), -1, np.int32)
        self._prompt = 0
        self._draws = np.zeros((1, 2), np.uint32)
        # Random numbers that were drawn for the tokens after the next one.
        self._later: deque[int] = deque()
        sampling = self._sampler.sampling.array()[None]
        self._inputs: dict[str, Array] = {SAMPLING: sampling, DRAWS: self._draws}
        if self._window:
            self._inputs[HISTORY] = self._recent

    @property
    def plan(self) -> Plan:
        """The sampling plan."""
        return self._plan

    def start(self, prompt: Sequence[int]) -> None:
        """Begin with the tokens of a prompt, which penalties count as well."""
        self._read = self._advanced = 0
        self._later.clear()
        if self.on_host:
            self._history = list(prompt)
            return
        self._recent[:] = -1
        if self._window:
            last = prompt[-self._window :]
            self._recent[0, : len(last)] = last
            self._prompt = len(last)
        self._draw()

    def head(self, model: Model, token_slots: Tensor) -> NextTokens:
        """Make the head that chooses a token on the device; heads of the same plan are equal."""
        return NextTokens(self._plan, 0, model, token_slots)

    def inputs(self) -> dict[str, Array]:
        """Return the head's inputs for the next step; safe to call again.

        The arrays are overwritten when the sampler advances.
        """
        return {} if self.on_host else self._inputs

    def draft_inputs(self, guessed: Sequence[int]) -> dict[str, Array]:
        """Return inputs for the next token and for the token after each draft token.

        For samplers on the device without steps in flight.

        Parameters
        ----------
        guessed : sequence of int
            Draft tokens, or references to them; at most `MOST_AHEAD` - 1.
        """
        rows = 1 + len(guessed)
        while len(self._later) < len(guessed):
            self._later.append(self._sampler.draw())
        draws = np.empty((rows, 2), np.uint32)
        draws[:, 0] = [self._draws[0, 0], *islice(self._later, len(guessed))]
        draws[:, 1] = [self._slot(self._advanced + row) for row in range(rows)]
        values: dict[str, Array] = {SAMPLING: np.repeat(self._inputs[SAMPLING], rows, axis=0)}
        values[DRAWS] = draws
        if self._window:
            values[HISTORY] = recent = np.repeat(self._recent, rows, axis=0)
            for row, token in enumerate(guessed, 1):
                recent[row:, self._place(self._advanced + row)] = token
        return values

    def references(self, count: int) -> list[int]:
        """Return references to the tokens of the next steps."""
        return [reference(self._slot(self._advanced + step)) for step in range(count)]

    def verify(self, slots: Array, guessed: Sequence[int]) -> list[int]:
        """Return the tokens of a step over draft tokens: the accepted ones, and the one after them.

        Parameters
        ----------
        slots : (slots,), i32
            Chosen tokens by slot.
        guessed : sequence of int
            The draft tokens.

        Raises
        ------
        BackendError
            The logits are NaN or infinite.
        """
        found: list[int] = []
        # -1 equals no token, so the loop ends with the token after the last draft at the latest.
        for guess in (*guessed, -1):
            slot = self._slot(self._advanced)
            found += check_tokens(slots[slot : slot + 1])
            self._advanced += 1
            self._remember(self._advanced, found[-1])
            self._draw()
            if found[-1] != guess:
                break
        self._read, self.newest = self._advanced, found[-1]
        return found

    def advance(self) -> None:
        """Count the step as submitted; the next inputs are for the step after it."""
        self._advanced += 1
        if self.on_host:
            return
        self.newest = reference(int(self._draws[0, 1]))
        self._remember(self._advanced, self.newest)
        self._draw()

    def token(self, arrays: Sequence[Array]) -> int:
        """Return the token of the oldest unread step, from the arrays that it read back.

        Raises
        ------
        BackendError
            The logits are NaN or infinite.
        """
        if self.on_host:
            token = self._sampler.sample(arrays[0][0], self._history)
            self._history.append(token)
        else:
            slot = self._slot(self._read)
            token = check_tokens(arrays[0][slot : slot + 1])[0]
        self._read += 1
        if self._advanced == self._read:
            self.newest = token
        # Otherwise a later step, still in flight, has overwritten this place of the ring.
        if self._advanced - self._read < self._window:
            self._remember(self._read, token)
        return token

    def chances(self, logits: NDArray[np.float32], history: Sequence[int]) -> Candidates:
        """Return the candidates of a choice; see `Sampler.chances`."""
        return self._sampler.chances(logits, history)

    def put(self, token: int) -> None:
        """Append a token that was not sampled; no step may be in flight."""
        self.newest = token
        if self.on_host:
            self._history.append(token)
        elif self._window:
            # This token was no step's, so all later places of the ring move by one.
            self._prompt += 1
            self._remember(self._read, token)

    def _slot(self, step: int) -> int:
        return self._first_place + step % MOST_AHEAD

    def _draw(self) -> None:
        number = self._later.popleft() if self._later else self._sampler.draw()
        self._draws[0] = number, self._slot(self._advanced)

    def _remember(self, count: int, token: int) -> None:
        """Put the token of the `count`-th step into the penalty window."""
        if self._window:
            self._recent[0, self._place(count)] = token

    def _place(self, count: int) -> int:
        # Steps are counted from 1, places from 0.
        return (self._prompt + count - 1) % self._window
