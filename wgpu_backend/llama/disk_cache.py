"""States of completed prompts in files, so that they are there after a restart."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.llama.drop_in_state import LlamaState, shared

_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


class LlamaDiskCache:
    """States by their tokens, a file each; those that were used longest ago are removed first.

    Several programs may have the same folder. Files that are damaged, and others, are passed over.

    Parameters
    ----------
    cache_dir : str or Path
        Folder, made where it is missing. Whoever can read it can read the texts of the prompts.
    capacity_bytes : int
        Of all files.
    """

    def __init__(
        self, cache_dir: str | Path = ".cache/llama_cache", capacity_bytes: int = 2 << 30
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self._folder = Path(cache_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._keys: dict[Path, tuple[int, ...]] = {}

    @property
    def cache_size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self._files())

    def _files(self) -> list[tuple[int, int, Path]]:
        """Time, size and path of each file, what was used longest ago first."""
        found: list[tuple[int, int, Path]] = []
        for path in self._folder.glob("*.npz"):
            try:
                stat = path.stat()
            except OSError:  # another program removed it
                continue
            found.append((stat.st_mtime_ns, stat.st_size, path))
        return sorted(found)

    def _nearest(self, key: Sequence[int]) -> Path | None:
        known = {path: self._key(path) for _, _, path in self._files()}
        self._keys = {path: tokens for path, tokens in known.items() if tokens}
        common = {path: shared(tokens, key) for path, tokens in self._keys.items()}
        best = max(common, key=lambda each: common[each], default=None)
        return best if best is not None and common[best] else None

    def _key(self, path: Path) -> tuple[int, ...]:
        """Tokens of a file, read once; none where it is damaged."""
        if path in self._keys:
            return self._keys[path]
        try:
            with path.open("rb") as raw, np.load(raw) as file:
                return tuple(file["key"].tolist())
        except _UNREADABLE:
            return ()

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """State that has most of the first tokens of `key`; KeyError where none has any."""
        path = self._nearest(key)
        if path is None:
            raise KeyError("no state begins as these tokens")
        try:
            with path.open("rb") as raw, np.load(raw) as file:
                state = _state({name: file[name] for name in file.files})
            os.utime(path)
        except _UNREADABLE as error:
            raise KeyError(f"{path.name}: is damaged, or was removed: {error}") from None
        return state

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._nearest(key) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        tokens = np.array(key, np.int64)
        path = self._folder / f"{sha256(tokens.tobytes()).hexdigest()[:32]}.npz"
        made = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with made.open("wb") as file:
                np.savez(
                    file,
                    key=tokens,
                    input_ids=value.input_ids,
                    scores=value.scores,
                    numbers=np.array([value.n_tokens, value.seed], np.int64),
                    state=np.frombuffer(value.llama_state, np.uint8),
                )
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
        self._trim()

    def _trim(self) -> None:
        files = self._files()
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.capacity_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def _state(found: dict[str, NDArray[np.generic]]) -> LlamaState:
    data = found["state"].tobytes()
    n_tokens, seed = (int(each) for each in found["numbers"].tolist())
    return LlamaState(
        input_ids=found["input_ids"].astype(np.intc),
        scores=found["scores"].astype(np.single),
        n_tokens=n_tokens,
        llama_state=data,
        llama_state_size=len(data),
        seed=seed,
    )
