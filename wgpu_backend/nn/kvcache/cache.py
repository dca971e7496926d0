"""The cache of past tokens, as seen by models and by code that manages sequences.

A cache has two sides. Graphs of a model read and write it by layer, through inputs that the cache
declares: block tables, slots, rows of states. Before each pass the host makes room for its tokens
and writes the values of those inputs. The cache also defines where a sequence can resume: recurrent
layers and windows forget, so such sequences resume at checkpoints.
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
"""The shape and type of inputs, by name."""

Counts = Sequence[tuple[int, int]]
"""The sequences of a pass in order, and the number of tokens of each."""


class GraphInputs:
    """The inputs of the graph of a pass; each is made on first use.

    Parameters
    ----------
    declared : mapping of str to (shape, dtype)
        Inputs that can be made.
    tokens : int
        Rows of a pass.
    longest : int
        Most positions of a sequence that the graph reads, see `Cache.reach`.
    sees_ahead : bool
        Whether some tokens attend to later tokens.
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
        """Return the pages that all layers of a cache share, made once."""
        if of not in self._pages:
            self._pages[of] = make()
        return self._pages[of]

    def __getitem__(self, name: str) -> Tensor:
        # Made on demand, so that a graph has only the inputs it reads.
        if name not in self._made:
            shape, dtype = self._declared[name]
            self._made[name] = self.context.input(name, shape, dtype)
        return self._made[name]


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The cached keys and values of a layer, and where each sequence's are among them.

    Parameters
    ----------
    keys : (slots, heads * k_cols)
    values : (slots, heads * v_cols)
        The same tensor as `keys` where values are their first columns.
    pages : Pages
        Positions count from the first one in the layer's block table, which is a multiple of the
        block and of the layer's chunk.
    longest : int
        Most positions of any sequence in the table.
    ends_name : str
        Name of the input of `ends`.
    window, chunk : int
        The layer's window and chunk, see `LayerShape`; 0 for none.
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
        """Return whether some token attends to later tokens, up to `ends`."""
        return self.inputs.sees_ahead

    @property
    def ends(self) -> Tensor:
        """Return the last position each token attends to, counted as in `pages`: (tokens,), i32.

        It is the token's own, unless the model is not causal or the batch has spans.
        """
        return self.inputs[self.ends_name]


@dataclass(frozen=True, slots=True)
class LayerState:
    """One state of a recurrent layer, for all sequences.

    Parameters
    ----------
    rows : (rows, *shape), f32
        Row 0 is zeros, the state of an empty sequence.
    runs : (sequences, 4), i32
        For each sequence of the pass: its first row in the batch, its number of rows, the row of
        `rows` that it reads, and the row that it writes. No sequence reads a row written in the
        same pass. A sequence without tokens, or of padding, is (end, 0, -1, -1).
    """

    rows: Tensor
    runs: Tensor


class Cache(Protocol):
    """A cache of past tokens.

    Attributes
    ----------
    positions : int
        Total positions of all sequences.
    """

    positions: int

    # For graphs.

    def input_specs(self, tokens: int, sequences: int, longest: int) -> InputSpecs:
        """Return the specifications of the cache's inputs of a pass's graph."""
        ...

    def reach(self, longest: int, tokens: int) -> int:
        """Return the positions of one sequence that a graph reads; fewer where layers forget.

        Parameters
        ----------
        longest : int
            Most positions of a sequence.
        tokens : int
            Tokens of the pass.
        """
        ...

    def put(self, layer: int, key: Tensor, value: Tensor | None, inputs: GraphInputs) -> KeyValues:
        """Write keys and values of a pass, and return those the layer may attend to.

        Parameters
        ----------
        key : (tokens, heads, k_cols), f32
        value : (tokens, heads, v_cols), f32, or None
            None where values are the first columns of keys.
        """
        ...

    def key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Return the keys and values that a layer reads without writing any."""
        ...

    def state(self, layer: int, name: str, inputs: GraphInputs) -> LayerState:
        """Return a state of a recurrent layer."""
        ...

    def encoder_key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Return keys and values of an encoder's text; a layer attends to all of them."""
        ...

    # For code that manages sequences.

    def length(self, sequence: int) -> int:
        """Return the positions of a sequence."""
        ...

    @property
    def free_positions(self) -> int:
        """Return a lower bound of the positions there is room for."""
        ...

    def fill(self, arrays: Arrays, counts: Counts) -> None:
        """Make room for the tokens of a pass, and write the inputs that `input_specs` names.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            Arrays of all inputs; those of the batch are filled already.
        counts : sequence of (sequence, tokens)

        Raises
        ------
        CacheFull
            There is no room; some sequences may have been extended.
        """
        ...

    def resume_point(self, sequence: int, position: int) -> int:
        """Return the last position up to `position` at which the sequence can resume."""
        ...

    def can_resume(self, sequence: int, position: int) -> bool:
        """Return whether a sequence can resume at `position`."""
        ...

    def remove(self, sequence: int, begin: int = 0) -> int:
        """Forget the positions after the resume point of `begin`.

        Returns
        -------
        int
            Positions that are left, at most `begin`.

        Raises
        ------
        CacheFull
            A shared block would have to change, and no block is free; nothing has changed.
        """
        ...

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """Copy the first positions of `source` to `target`, up to a resume point.

        Returns
        -------
        int
            Positions that `target` has now, at most `length`; its old positions are forgotten.

        Raises
        ------
        CacheFull
            There is no room for the part that cannot be shared; nothing has changed.
        """
        ...

    def can_shift(self, sequence: int, begin: int, end: int) -> bool:
        """Return whether `shift` can remove positions `begin` to `end`.

        Layers with states, chunks, or keys without `LayerShape.turn` cannot be shifted, nor can a
        window that has already forgotten positions which the next token would see.
        """
        ...

    def shift(self, sequence: int, begin: int, end: int) -> None:
        """Remove positions from a sequence, and move the following ones into their place.

        Keys that move are rotated by `LayerShape.turn` and stored again in the cache's type. Keys
        and values computed while the removed positions were visible are not recomputed.

        Parameters
        ----------
        begin, end : int
            First position, and one past the last.

        Raises
        ------
        ContextError
            `can_shift` is false.
        CacheFull
            A shared block would have to change, and no block is free; nothing has changed.
        """
        ...

    def save(self, sequence: int) -> Saved:
        """Return the cached data of a sequence, on the host; of states, the newest one."""
        ...

    def require_saved(self, saved: Saved) -> None:
        """Raise a ContextError if the data was saved by another kind of cache."""
        ...

    def restore(self, sequence: int, saved: Saved) -> None:
        """Give a sequence the saved data of a cache with the same layers; old data is forgotten.

        Raises
        ------
        ContextError
            Another kind of cache saved it; nothing has changed.
        CacheFull
            There is no room for it; the sequence is then empty.
        """
        ...

    def close(self) -> None:
        """Release the device memory; calling it again is harmless."""
        ...


def ints(*shape: int) -> tuple[Shape, DType]:
    """Return the specification of an i32 input."""
    return shape, I32


def require_shift(cache: Cache, sequence: int, begin: int, end: int) -> None:
    """Raise if a cache cannot do a shift.

    Raises
    ------
    ContextError
        `Cache.can_shift` is false.
    """
    if not cache.can_shift(sequence, begin, end):
        raise ContextError(
            f"cache: cannot remove positions {begin} to {end} of {cache.length(sequence)}: some "
            "are missing, a window has dropped what they would need, or a layer's states, chunks "
            "or learned positions cannot move; process the text again"
        )
