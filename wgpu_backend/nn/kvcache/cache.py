"""Cache: what models and those who manage sequences ask of what is kept of past tokens.

A cache has two sides. Graphs of a model read and write it by layer, through inputs that the cache
declares: block tables, slots, rows of states. Before each pass the host makes room for its tokens
and writes down the values of those inputs. Where a sequence may go on from is the cache's to say:
recurrent layers and windows forget, and go on from where a checkpoint was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from wgpu_backend.dtypes import I32, DType
from wgpu_backend.errors import ContextError
from wgpu_backend.graph.spec import Shape
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.kvcache.saving import Saved
from wgpu_backend.ops.attention.paged import Pages

Arrays = Mapping[str, NDArray[Any]]
InputSpecs = Mapping[str, tuple[Shape, DType]]
"""Shape and type of inputs, by name."""

Counts = Sequence[tuple[int, int]]
"""Sequences of a pass in order, and how many tokens each has in it."""


class GraphInputs:
    """Inputs of the graph of a pass; each is made when something first asks for it.

    Parameters
    ----------
    context : Context
    declared : mapping of str to (shape, dtype)
    tokens : int
        Rows of a pass.
    longest : int
        Most positions of a sequence that it has to do with, see `Cache.reach`.
    sees_ahead : bool
        Whether some tokens see others that come later.
    """

    def __init__(
        self,
        context: Context,
        declared: InputSpecs,
        *,
        tokens: int,
        longest: int,
        sees_ahead: bool = False,
    ) -> None:
        self.context = context
        self.tokens = tokens
        self.longest = longest
        self.sees_ahead = sees_ahead
        self._declared = declared
        self._made: dict[str, Tensor] = {}
        self._pages: dict[object, Pages] = {}

    def pages(self, of: object, make: Callable[[], Pages]) -> Pages:
        """Pages that all layers of a cache share, and what is joined of them: made once."""
        if of not in self._pages:
            self._pages[of] = make()
        return self._pages[of]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            shape, dtype = self._declared[name]
            self._made[name] = self.context.input(name, shape, dtype)
        return self._made[name]


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Keys and values of a layer, and where those of each sequence lie.

    Parameters
    ----------
    keys : (slots, heads * k_cols)
    values : (slots, heads * v_cols)
        The same tensor as `keys` where values are their first columns.
    pages : Pages
        Its positions are counted from the first one that the layer's block table still has. That is
        a multiple of the block, and of the layer's chunk.
    longest : int
        No sequence has more positions than this in the table.
    inputs : GraphInputs
    ends_name : str
        Of the input behind `ends`.
    window, chunk : int
        What the layer said it sees, see `LayerShape`; 0 for all.
    """

    keys: Tensor
    values: Tensor
    pages: Pages
    longest: int
    inputs: GraphInputs
    ends_name: str
    window: int = 0
    chunk: int = 0

    @property
    def sees_ahead(self) -> bool:
        """Whether some token of the batch sees others that come later: `ends` says which."""
        return self.inputs.sees_ahead

    @property
    def ends(self) -> Tensor:
        """Last position that each token sees, counted as those of `pages`: (tokens,), i32.

        Its own, unless the model is not causal or its batch has spans.
        """
        return self.inputs[self.ends_name]


@dataclass(frozen=True, slots=True)
class LayerState:
    """One state of a recurrent layer, over all sequences.

    Parameters
    ----------
    rows : (rows, *shape), f32
        Row 0 is zeros, with which a sequence begins.
    runs : (sequences, 4), i32
        Of each sequence of the pass: its first row in the batch, how many it has, the row of
        `rows` that it begins with, and the one that its state goes to. Nobody reads that one in
        the pass. A sequence without tokens, or one of padding, is (end, 0, -1, -1).
    """

    rows: Tensor
    runs: Tensor


class Cache(Protocol):
    """What is kept of past tokens.

    Attributes
    ----------
    positions : int
        Over all sequences.
    """

    positions: int

    # For graphs.

    def input_specs(self, tokens: int, sequences: int, longest: int) -> InputSpecs:
        """Inputs of a pass's graph beside those of the batch."""
        ...

    def reach(self, longest: int, tokens: int) -> int:
        """Positions of one sequence that a graph has to do with; fewer where layers forget.

        Parameters
        ----------
        longest : int
            Most positions that a sequence has.
        tokens : int
            Of the pass.
        """
        ...

    def put(self, layer: int, key: Tensor, value: Tensor | None, inputs: GraphInputs) -> KeyValues:
        """Write keys and values of a pass, and give what the layer may attend to.

        Parameters
        ----------
        layer : int
        key : (tokens, heads, k_cols), f32
        value : (tokens, heads, v_cols), f32, or None
            None where values are the first columns of keys.
        inputs : GraphInputs
        """
        ...

    def key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """What a layer may attend to without a write of its own."""
        ...

    def state(self, layer: int, name: str, inputs: GraphInputs) -> LayerState:
        """A state of a recurrent layer."""
        ...

    def encoder_key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Keys and values of an encoder's text, which a layer attends to whole."""
        ...

    # For what manages sequences.

    def length(self, sequence: int) -> int:
        """Positions of a sequence."""
        ...

    @property
    def free_positions(self) -> int:
        """Positions there is room for, at least."""
        ...

    def fill(self, arrays: Arrays, counts: Counts) -> None:
        """Make room for the tokens of a pass, and write down the inputs that `declared` names.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            Of all inputs; those of the batch are filled already.
        counts : sequence of (sequence, tokens)

        Raises
        ------
        CacheFull
            There is no room; some sequences may have been extended.
        """
        ...

    def resume_point(self, sequence: int, position: int) -> int:
        """Last position up to `position` from which the sequence can go on."""
        ...

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether a sequence can go on from `position`."""
        ...

    def remove(self, sequence: int, begin: int = 0) -> int:
        """Forget what follows the resume point of `begin`.

        Returns
        -------
        int
            Positions that are left; as few as `begin`, or fewer.

        Raises
        ------
        CacheFull
            Others share what would have to change, and no room is free; nothing has changed.
        """
        ...

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """Give `target` the first positions of `source`, as far as they can be gone on from.

        Returns
        -------
        int
            Positions that it has now, at most `length`; what it had before is forgotten.

        Raises
        ------
        CacheFull
            There is no room for what cannot be shared; nothing has changed.
        """
        ...

    def can_shift(self, sequence: int, begin: int, end: int) -> bool:
        """Whether `shift` may take these positions out.

        Not where layers have states, chunks, or keys that no `LayerShape.turn` moves; nor where a
        window has forgotten what the next token would see of the positions in front.
        """
        ...

    def shift(self, sequence: int, begin: int, end: int) -> None:
        """Take positions out of a sequence; what follows takes their places.

        Keys that move are turned as their layers say, and written again in the cache's type. What
        was computed of them, and of values, in sight of the positions that went stays as it is.

        Parameters
        ----------
        begin, end : int
            First position, and one past the last.

        Raises
        ------
        ContextError
            `can_shift` says no.
        CacheFull
            Others share what would have to change, and no room is free; nothing has changed.
        """
        ...

    def save(self, sequence: int) -> Saved:
        """What there is of a sequence, on the host; of states, the newest one."""
        ...

    def require_saved(self, saved: Saved) -> None:
        """Refuse what another kind of cache saved: a ContextError."""
        ...

    def restore(self, sequence: int, saved: Saved) -> None:
        """Give a sequence what a cache of the same layers saved; what it had before is forgotten.

        Raises
        ------
        ContextError
            Another kind of cache saved it; nothing has changed.
        CacheFull
            There is no room for it; the sequence has nothing then.
        """
        ...

    def close(self) -> None:
        """Release the device memory; again is harmless."""
        ...


def ints(*shape: int) -> tuple[Shape, DType]:
    """Declare an input of i32."""
    return shape, I32


def require_shift(cache: Cache, sequence: int, begin: int, end: int) -> None:
    """Refuse a shift that a cache cannot do.

    Raises
    ------
    ContextError
        `Cache.can_shift` says no.
    """
    if not cache.can_shift(sequence, begin, end):
        raise ContextError(
            f"cache: positions {begin} to {end} of a sequence of {cache.length(sequence)} cannot "
            "go: they are not there, layers have forgotten what would be seen then, or have what "
            "cannot move, as states, chunks or learned positions; read again"
        )
