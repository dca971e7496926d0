"""A cache with one part for each kind of layer; the parts advance and forget together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from wgpu_backend.errors import CacheFull, ContextError
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.kvcache.cache import (
    Arrays,
    Counts,
    GraphInputs,
    InputSpecs,
    KeyValues,
    LayerState,
    require_shift,
)
from wgpu_backend.nn.kvcache.encoded import EncodedCache
from wgpu_backend.nn.kvcache.recurrent import Checkpoints
from wgpu_backend.nn.kvcache.saving import Saved, SavedPart, require_parts


class Part(Protocol):
    """The cache of one kind of layer; `LayeredCache` decides lengths and resume points.

    Attributes
    ----------
    unit : str
        The unit of `shortage`, in words.
    """

    unit: ClassVar[str]

    @property
    def tensors(self) -> list[Tensor]:
        """Return the tensors on the device."""
        ...

    def input_specs(self, tokens: int, sequences: int, longest: int) -> InputSpecs:
        """Return the specifications of inputs, see `Cache`."""
        ...

    def reach(self, longest: int, tokens: int) -> int:
        """Return the positions that a graph reads, see `Cache`."""
        ...

    def put(self, layer: int, key: Tensor, value: Tensor | None, inputs: GraphInputs) -> KeyValues:
        """Write keys and values, see `Cache`."""
        ...

    def key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Return keys and values, see `Cache`."""
        ...

    def state(self, layer: int, name: str, inputs: GraphInputs) -> LayerState:
        """Return a state, see `Cache`."""
        ...

    def length(self, sequence: int) -> int:
        """Return the positions of a sequence."""
        ...

    @property
    def free_positions(self) -> int:
        """Return a lower bound of the positions there is room for."""
        ...

    def shortage(self, counts: Counts) -> int:
        """Return how many blocks or rows (see `unit`) are missing for a pass."""
        ...

    def fill(self, arrays: Arrays, counts: Counts) -> None:
        """Take room for a pass, and write its inputs; the caller has checked `shortage`."""
        ...

    def retain(self, sequence: int, checkpoints: Sequence[int], *, short: bool = False) -> None:
        """Free everything except what is needed to resume at one of these positions."""
        ...

    def resume_point(self, sequence: int, position: int) -> int:
        """Return the last position up to `position` at which the part can resume."""
        ...

    def require_truncate(self, sequence: int, length: int) -> None:
        """Raise CacheFull if `truncate` would."""
        ...

    def require_share(self, source: int, target: int, length: int) -> None:
        """Raise CacheFull if `share` would."""
        ...

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the positions after a resume point."""
        ...

    def share(self, source: int, target: int, length: int) -> None:
        """Share the positions of `source` up to a resume point with `target`."""
        ...

    def drop(self, sequence: int) -> None:
        """Forget a sequence."""
        ...

    def can_shift(self, sequence: int, begin: int, end: int) -> bool:
        """Return whether positions `begin` to `end` can be removed."""
        ...

    def require_cut_out(self, sequence: int, begin: int, end: int) -> None:
        """Raise CacheFull if `shift` would."""
        ...

    def shift(self, sequence: int, begin: int, end: int) -> None:
        """Remove positions, see `Cache`."""
        ...

    def save_part(self, sequence: int) -> SavedPart:
        """Return the cached data of a sequence, see `Cache.save`."""
        ...

    def require_part(self, saved: SavedPart) -> None:
        """Raise if the data was saved by a cache of another shape."""
        ...

    def restore_part(self, sequence: int, saved: SavedPart) -> None:
        """Give an empty sequence the saved data."""
        ...

    def close(self) -> None:
        """Release the device memory."""
        ...


class LayeredCache:
    """The parts of a cache, which hold the same sequences, and their checkpoints.

    See `Cache` for the methods.

    Parameters
    ----------
    parts : mapping of Part to sequence of int
        Layers of each part.
    states : Part or None
        The part with recurrent states.
    positions : int
        Total positions of all sequences.
    texts : EncodedCache or None
        The part with an encoder's keys and values.
    """

    def __init__(
        self,
        parts: Mapping[Part, Sequence[int]],
        states: Part | None,
        positions: int,
        checkpoints: Checkpoints,
        texts: EncodedCache | None = None,
    ) -> None:
        self.positions = positions
        self.parts = tuple(parts)
        self.checkpoints = checkpoints
        self._states = states
        self._texts = texts
        self._paged = {
            layer: part for part, layers in parts.items() if part is not states for layer in layers
        }

    # For graphs.

    def input_specs(self, tokens: int, sequences: int, longest: int) -> InputSpecs:
        """Return the specifications of the inputs of all parts."""
        specs = [part.input_specs(tokens, sequences, longest) for part in self.parts]
        return {name: spec for inputs in specs for name, spec in inputs.items()}

    def reach(self, longest: int, tokens: int) -> int:
        """Return the most positions that a part reads."""
        return max(part.reach(longest, tokens) for part in self.parts)

    def put(self, layer: int, key: Tensor, value: Tensor | None, inputs: GraphInputs) -> KeyValues:
        """Write keys and values of a layer."""
        return self._part(layer).put(layer, key, value, inputs)

    def key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Return the keys and values of a layer."""
        return self._part(layer).key_values(layer, inputs)

    def state(self, layer: int, name: str, inputs: GraphInputs) -> LayerState:
        """Return a state of a layer."""
        if self._states is None:
            raise ContextError(f"cache: layer {layer} has no state {name!r}, no layer has one")
        return self._states.state(layer, name, inputs)

    def encoder_key_values(self, layer: int, inputs: GraphInputs) -> KeyValues:
        """Return the keys and values of an encoder's text for a layer."""
        if self._texts is None:
            raise ContextError(
                f"cache: layer {layer} does not attend to an encoder's text, no layer does"
            )
        return self._texts.encoder_key_values(layer, inputs)

    def _part(self, layer: int) -> Part:
        if layer not in self._paged:
            raise ContextError(f"cache: layer {layer} stores no keys; {sorted(self._paged)} do")
        return self._paged[layer]

    # For code that manages sequences.

    def length(self, sequence: int) -> int:
        """Return the positions of a sequence."""
        # All parts have the same positions of a sequence.
        return self.parts[0].length(sequence)

    @property
    def free_positions(self) -> int:
        """Return the positions that every part has room for."""
        return min(self.positions, *(part.free_positions for part in self.parts))

    def fill(self, arrays: Arrays, counts: Counts) -> None:
        """Take room for a pass in every part; drop checkpoints if room is short."""
        self._make_room(counts)
        for part in self.parts:
            part.fill(arrays, counts)
        for sequence, _ in counts:
            self.checkpoints.add(sequence, self.length(sequence))
            self._retain(sequence)

    def _make_room(self, counts: Counts) -> None:
        """Drop checkpoints until every part has enough room.

        Raises
        ------
        CacheFull
            There is no checkpoint left to drop.
        """
        busy = {sequence for sequence, _ in counts}
        for part in self.parts:
            if part.shortage(counts):
                for sequence in self.checkpoints.sequences():
                    self._retain(sequence, short=True)
            while missing := part.shortage(counts):
                if not self._sacrifice(busy):
                    tokens = sum(count for _, count in counts)
                    raise CacheFull(
                        f"cache: {tokens} more positions need {missing} {part.unit} more than the "
                        "free ones"
                    )

    def _require_cut_out(self, part: Part, sequence: int, begin: int, end: int) -> None:
        """Raise if a shift has no room even after all checkpoints are dropped."""
        while True:
            try:
                return part.require_cut_out(sequence, begin, end)
            except CacheFull:
                if not self._sacrifice({sequence}):
                    raise

    def _sacrifice(self, busy: set[int]) -> bool:
        """Drop a checkpoint to free its memory; return False if none is left."""
        sequence = self.checkpoints.sacrifice(busy)
        if sequence is None:
            return False
        self._retain(sequence, short=True)
        return True

    def _retain(self, sequence: int, *, short: bool = False) -> None:
        for part in self.parts:
            part.retain(sequence, self.checkpoints.list_ends(sequence), short=short)

    def resume_point(self, sequence: int, position: int) -> int:
        """Return the last position up to `position` at which every part can resume."""
        found = min(max(position, 0), self.length(sequence))
        # A part may go further back than another allows, so repeat until all agree.
        while True:
            before = found
            for part in self.parts:
                found = part.resume_point(sequence, found)
            if found == before:
                return found

    def can_resume(self, sequence: int, position: int) -> bool:
        """Return whether generation can resume at `position`."""
        return self.resume_point(sequence, position) == position

    def remove(self, sequence: int, begin: int = 0) -> int:
        """Forget the positions after the resume point of `begin`."""
        end = self.resume_point(sequence, begin)
        if not end:
            self._drop(sequence)
            return 0
        # All parts are checked before the first one changes, so that a failure changes nothing.
        for part in self.parts:
            part.require_truncate(sequence, end)
        self._all(sequence, lambda part: part.truncate(sequence, end))
        self.checkpoints.cut(sequence, end)
        return end

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """Share the first positions of one sequence with another, up to a resume point."""
        if source == target:
            return self.remove(source, length)
        end = self.resume_point(source, length)
        # Checked before the first part changes, as in `remove`.
        for part in self.parts:
            part.require_share(source, target, end)
        self._all(target, lambda part: part.share(source, target, end))
        self.checkpoints.copy(source, target, end)
        return end

    def can_shift(self, sequence: int, begin: int, end: int) -> bool:
        """Return whether every part can remove positions `begin` to `end`."""
        return all(part.can_shift(sequence, begin, end) for part in self.parts)

    def shift(self, sequence: int, begin: int, end: int) -> None:
        """Remove positions from a sequence in every part."""
        require_shift(self, sequence, begin, end)
        if begin == end:
            return
        # Checked before the first part changes, as in `remove`.
        for part in self.parts:
            self._require_cut_out(part, sequence, begin, end)
        self._all(sequence, lambda part: part.shift(sequence, begin, end))
        self.checkpoints.shift(sequence, begin, end)

    def save(self, sequence: int) -> Saved:
        """Return the cached data of a sequence in every part, on the host."""
        return [part.save_part(sequence) for part in self.parts]

    def require_saved(self, saved: Saved) -> None:
        """Raise if the data was saved by another kind of cache."""
        require_parts(saved, len(self.parts))
        pairs = list(zip(self.parts, saved, strict=True))
        for part, own in pairs:
            part.require_part(own)
        # An encoder's text has a length of its own.
        lengths = {own.length for part, own in pairs if part is not self._texts}
        if len(lengths) > 1:
            raise ContextError(f"cache: parts of a sequence were saved of lengths {lengths}")

    def restore(self, sequence: int, saved: Saved) -> None:
        """Give a sequence the saved data, in every part."""
        self.require_saved(saved)
        self._drop(sequence)
        try:
            for part, own in zip(self.parts, saved, strict=True):
                part.restore_part(sequence, own)
        except BaseException:
            # Parts that were restored before the failure would have another length than the rest.
            self._drop(sequence)
            raise
        if length := self.length(sequence):
            self.checkpoints.add(sequence, length)
            self._retain(sequence)

    def _all(self, sequence: int, act: Callable[[Part], object]) -> None:
        """Apply a function to every part; forget the sequence if one fails."""
        try:
            for part in self.parts:
                act(part)
        except BaseException:
            self._drop(sequence)
            raise

    def _drop(self, sequence: int) -> None:
        for part in self.parts:
            part.drop(sequence)
        self.checkpoints.cut(sequence, 0)

    def close(self) -> None:
        """Release the device memory; calling it again is harmless."""
        for part in self.parts:
            part.close()
