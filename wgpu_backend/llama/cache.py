"""Saved states of `Llama`, and caches that keep them between prompts, in memory or in files."""

from __future__ import annotations

import os
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# Errors of damaged files and of files that another process removed.
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


@dataclass(slots=True)
class LlamaState:
    """A state that `Llama.save_state` returns.

    Parameters
    ----------
    input_ids : (n_ctx,), intc
        Tokens, followed by zeros.
    scores : (tokens, vocabulary), float32
        Logits with ``logits_all``, else no rows.
    n_tokens : int
        Number of tokens in `input_ids`.
    llama_state : bytes
        See `Context.state_seq_get_data`.
    """

    input_ids: NDArray[np.intc]
    scores: NDArray[np.single]
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


class LlamaRAMCache:
    """A cache of states in memory that drops the least recently used first.

    Parameters
    ----------
    capacity_bytes : int
        Most bytes of all states.
    """

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes
        # The least recently used is first.
        self._states: OrderedDict[tuple[int, ...], LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        """Bytes of all states."""
        return sum(state.llama_state_size for state in self._states.values())

    def _find(self, key: Sequence[int]) -> tuple[int, ...] | None:
        common = {each: count_common_prefix(each, key) for each in self._states}
        best = max(common, key=lambda each: common[each], default=None)
        return best if best is not None and common[best] else None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """Return the state with the longest common prefix; KeyError if none has any."""
        found = self._find(key)
        if found is None:
            raise KeyError("no state begins with these tokens")
        self._states.move_to_end(found)
        return self._states[found]

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._find(key) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self._states[tuple(key)] = value
        # An existing key keeps its old place otherwise.
        self._states.move_to_end(tuple(key))
        while self._states and self.cache_size > self.capacity_bytes:
            self._states.popitem(last=False)


class LlamaDiskCache:
    """A cache with one file per state that removes the least recently used first.

    Several processes may use the same folder. Damaged files and files of other programs are
    skipped.

    Parameters
    ----------
    cache_dir : str or Path
        Folder, created if it is missing. Users who can read it can read the texts of the prompts.
    capacity_bytes : int
        Most bytes of all files.
    """

    def __init__(
        self, cache_dir: str | Path = ".cache/llama_cache", capacity_bytes: int = 2 << 30
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self._folder = Path(cache_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        # Tokens of each file, so that a search opens only new ones.
        self._keys: dict[Path, tuple[int, ...]] = {}

    @property
    def cache_size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self._list_files())

    def _list_files(self) -> list[tuple[int, int, Path]]:
        """Return time, size and path of each file, the least recently used first."""
        found: list[tuple[int, int, Path]] = []
        for path in self._folder.glob("*.npz"):
            try:
                stat = path.stat()
            except OSError:
                # Another process removed it.
                continue
            found.append((stat.st_mtime_ns, stat.st_size, path))
        return sorted(found)

    def _find(self, key: Sequence[int]) -> Path | None:
        known = {path: self._read_key(path) for _, _, path in self._list_files()}
        self._keys = {path: tokens for path, tokens in known.items() if tokens}
        common = {path: count_common_prefix(tokens, key) for path, tokens in self._keys.items()}
        best = max(common, key=lambda each: common[each], default=None)
        return best if best is not None and common[best] else None

    def _read_key(self, path: Path) -> tuple[int, ...]:
        """Return the tokens of a file; none if it is damaged."""
        if path in self._keys:
            return self._keys[path]
        try:
            # np.load() of a path leaves a damaged file open.
            with path.open("rb") as raw, np.load(raw) as file:
                return tuple(file["key"].tolist())
        except _UNREADABLE:
            return ()

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """Return the state with the longest common prefix; KeyError if none has any."""
        path = self._find(key)
        if path is None:
            raise KeyError("no state begins with these tokens")
        try:
            with path.open("rb") as raw, np.load(raw) as file:
                state = _make_state({name: file[name] for name in file.files})
            # The time of the last use: many file systems do not record reads.
            os.utime(path)
        except _UNREADABLE as error:
            raise KeyError(f"{path.name}: is damaged, or was removed: {error}") from None
        return state

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._find(key) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        tokens = np.array(key, np.int64)
        path = self._folder / f"{sha256(tokens.tobytes()).hexdigest()[:32]}.npz"
        # Renamed when it is complete, so that other processes never read a part of it.
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with partial.open("wb") as file:
                np.savez(
                    file,
                    key=tokens,
                    input_ids=value.input_ids,
                    scores=value.scores,
                    numbers=np.array([value.n_tokens, value.seed], np.int64),
                    state=np.frombuffer(value.llama_state, np.uint8),
                )
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        self._trim()

    def _trim(self) -> None:
        files = self._list_files()
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.capacity_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def count_common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of first tokens that two texts have in common."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _make_state(arrays: dict[str, NDArray[np.generic]]) -> LlamaState:
    data = arrays["state"].tobytes()
    n_tokens, seed = (int(each) for each in arrays["numbers"].tolist())
    return LlamaState(
        input_ids=arrays["input_ids"].astype(np.intc),
        scores=arrays["scores"].astype(np.single),
        n_tokens=n_tokens,
        llama_state=data,
        llama_state_size=len(data),
        seed=seed,
    )
