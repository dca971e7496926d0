"""Saving and restoring what a context has of its sequences."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

from wgpu_backend.dtypes import F16
from wgpu_backend.errors import CacheFull
from wgpu_backend.llama.memory import Memory
from wgpu_backend.llama.model import Model
from wgpu_backend.llama.states import Layout, SavedSequence, StateError, packed, unpacked
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.layered import LayeredCache
from wgpu_backend.nn.kvcache.paged import PagedCache

Result = TypeVar("Result")


class SavedContext(ABC):
    """The part of `Context` that saves and restores: llama.h's ``llama_state_…``.

    Of sequences that share a prefix each is saved whole, and of recurrent layers the newest state.
    Logits are not saved: a restored sequence gives them with its next token.
    """

    model: Model
    memory: Memory
    _cache: Cache

    @abstractmethod
    def alone(self, act: Callable[[], Result]) -> Result:
        """Run something while no other thread computes with the model."""

    def _layout(self) -> Layout:
        cache = self._cache
        parts = cache.parts if isinstance(cache, LayeredCache) else [cast("PagedCache", cache)]
        tensors = [part.tensors for part in parts]
        model = {
            "architecture": self.model.config.architecture,
            "name": str(self.model.meta_val_str("general.name")),
            "layers": self.model.n_layer(),
            "width": self.model.n_embd(),
            "vocabulary": self.model.n_vocab(),
        }
        cols = [[tensor.shape[1] for tensor in part] for part in tensors]
        return Layout(model, cols, [all(t.dtype == F16 for t in part) for part in tensors])

    def state_get_data(self) -> bytes:
        """All sequences, as bytes."""
        return self.alone(lambda: self._packed(range(self.memory.n_seq_max), ()))

    def state_get_size(self) -> int:
        """Bytes of all sequences."""
        return len(self.state_get_data())

    def state_set_data(self, data: bytes) -> int:
        """Have the sequences of saved bytes, and no others.

        Returns
        -------
        int
            Bytes that were read.

        Raises
        ------
        StateError
            The bytes are damaged, or of another model, type of cache or number of sequences;
            nothing has changed.
        CacheFull
            There is no room for them; the context has no sequences then.
        """
        self._set_all(data)
        return len(data)

    def state_seq_get_data(self, sequence: int) -> bytes:
        """One sequence, as bytes."""
        return self.alone(lambda: self._packed([self.memory.known(sequence)], ()))

    def state_seq_get_size(self, sequence: int) -> int:
        """Bytes of one sequence."""
        return len(self.state_seq_get_data(sequence))

    def state_seq_set_data(self, data: bytes, sequence: int) -> int:
        """Have a sequence be the one of saved bytes, whatever its number was.

        Raises
        ------
        StateError
            The bytes are no sound state of one sequence of this model; nothing has changed.
        CacheFull
            There is no room for it; the sequence has nothing then.
        """
        self._set_one(data, sequence)
        return len(data)

    def state_save_file(self, path: str | Path, tokens: Sequence[int] = ()) -> None:
        """Write all sequences to a file, with tokens that `state_load_file` gives back.

        The file is there whole or not at all.
        """
        _write(path, self.alone(lambda: self._packed(range(self.memory.n_seq_max), tokens)))

    def state_load_file(self, path: str | Path) -> list[int]:
        """Have the sequences of a file, and no others; errors as of `state_set_data`.

        Returns
        -------
        list of int
            Tokens of the file.
        """
        return self._set_all(Path(path).read_bytes())

    def state_seq_save_file(
        self, path: str | Path, sequence: int, tokens: Sequence[int] = ()
    ) -> int:
        """Write one sequence to a file, with tokens; bytes written."""
        data = self.alone(lambda: self._packed([self.memory.known(sequence)], tokens))
        _write(path, data)
        return len(data)

    def state_seq_load_file(self, path: str | Path, sequence: int) -> list[int]:
        """Have a sequence be that of a file; errors as of `state_seq_set_data`.

        Returns
        -------
        list of int
            Tokens of the file.
        """
        return self._set_one(Path(path).read_bytes(), sequence)

    def _packed(self, sequences: Sequence[int], tokens: Sequence[int]) -> bytes:
        found: list[SavedSequence] = []
        for sequence in sequences:
            self.memory.require_whole(sequence)
            if self._cache.length(sequence) or len(sequences) == 1:
                found.append(SavedSequence(sequence, self._cache.save(sequence)))
        return packed(self._layout(), found, tokens)

    def _set_all(self, data: bytes) -> list[int]:
        found, tokens = unpacked(bytes(data), self._layout())
        wrong = [each.number for each in found if each.number >= self.memory.n_seq_max]
        if wrong:
            raise StateError(f"state: sequence {wrong[0]}, the context has {self.memory.n_seq_max}")
        self.alone(lambda: self._restore(found))
        return tokens

    def _restore(self, found: Sequence[SavedSequence]) -> None:
        for each in found:
            self._require_fitting(each)
        self.memory.clear()
        try:
            for each in found:
                self._cache.restore(each.number, each.saved)
        except BaseException:
            self.memory.clear()
            raise

    def _set_one(self, data: bytes, sequence: int) -> list[int]:
        found, tokens = unpacked(bytes(data), self._layout())
        if len(found) != 1:
            raise StateError(f"state: {len(found)} sequences, needs one alone")
        self.memory.known(sequence)
        self.alone(lambda: self._restore_one(found[0], sequence))
        return tokens

    def _restore_one(self, each: SavedSequence, sequence: int) -> None:
        self._require_fitting(each)
        self._cache.restore(sequence, each.saved)
        self.memory.forget_gap(sequence)

    def _require_fitting(self, each: SavedSequence) -> None:
        """Refuse what the cache would refuse, before anything is forgotten."""
        length = max((part.length for part in each.saved), default=0)
        if length > self._cache.positions:
            raise CacheFull(
                f"state: a sequence of {length} positions, the context holds "
                f"{self._cache.positions}"
            )
        try:
            self._cache.require_saved(each.saved)
        except ValueError as error:
            raise StateError(f"state: {error}") from None


def _write(path: str | Path, data: bytes) -> None:
    """Write a file under another name, and give it its own when it is whole."""
    whole = Path(path)
    part = whole.with_name(f"{whole.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(whole)
    finally:
        part.unlink(missing_ok=True)
