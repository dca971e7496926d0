"""Importance matrices: mean squares of the values that each column is multiplied with.

llama.cpp's ``llama-imatrix`` writes them as GGUF files, with sums and counts for each matrix and
expert. Older files are in a format of their own (``.dat``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.file_bytes import FileBytes
from wgpu_backend.files.gguf.header import TensorInfo
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.files.quantize.search import Floats

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAX_NAME = 4096


@dataclass(frozen=True, slots=True)
class Importances:
    """The content of an importance matrix.

    Parameters
    ----------
    path : Path
        The file.
    values : Mapping of str to ndarray
        By the name of a matrix: (columns,), or (experts · columns,), f32.
    chunks : int
        Number of text chunks that they were measured with; 0 if unknown.
    """

    path: Path
    values: Mapping[str, Floats]
    chunks: int

    def find(self, info: TensorInfo) -> NDArray[np.float32] | None:
        """Return a matrix's importances, (experts, columns), with 1 expert if it has none; or None.

        Raises
        ------
        ModelError
            Their number does not fit the matrix's columns and experts.
        """
        values = self.values.get(info.name)
        if values is None:
            return None
        columns = info.shape[len(info.shape) - 1]
        experts = info.shape[len(info.shape) - 3] if len(info.shape) > 2 else 1
        if values.size != experts * columns:
            # Importances of a tied embedding are those of the output.
            if info.name == "token_embd.weight":
                return None
            raise ModelError(
                f"{self.path}: {values.size} importances for {info.name}, which has "
                f"{experts} × {columns} columns"
            )
        return values.reshape(experts, columns)


def read_importances(path: Path) -> Importances:
    """Read a file of either format.

    Raises
    ------
    ModelError, GGUFError
        It is missing, damaged, or has no importances; the message has the details.
    """
    file = FileBytes(path)
    try:
        is_gguf = file.nbytes >= 4 and file.read("header", 0, 4) == b"GGUF"
        data = b"" if is_gguf else file.read("entries", 0, file.nbytes)
    finally:
        file.close()
    if not is_gguf:
        return _read_dat(path, data)
    with open_gguf(path) as opened:
        return _read_gguf(path, opened)


def _read_gguf(path: Path, file: GGUFFile) -> Importances:
    names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
    if not names:
        raise ModelError(
            f"{path}: no tensor NAME{_SUMS} in the file, it is not an importance matrix"
        )
    values = {name: _means(path, file, name) for name in names}
    return Importances(path, values, file.config.uint("imatrix.chunk_count", 0))


def _means(path: Path, file: GGUFFile, name: str) -> Floats:
    if name + _COUNTS not in file.tensors:
        raise ModelError(f"{path}: tensor {name}{_SUMS} has no {name}{_COUNTS}")
    sums, counts = _floats(path, file, name + _SUMS), _floats(path, file, name + _COUNTS)
    if sums.size % counts.size:
        raise ModelError(f"{path}: {name} has {sums.size} sums for {counts.size} counts")
    # Counts are stored as floats.
    rows, times = sums.reshape(counts.size, -1), np.rint(counts)[:, None]
    with np.errstate(all="ignore"):
        # All columns of an expert that was never chosen count the same.
        means = np.where(times > 0, rows / times, np.float32(1))
    return _sound(path, name, means.reshape(-1))


def _floats(path: Path, file: GGUFFile, name: str) -> Floats:
    if file.tensors[name].dtype != F32:
        raise ModelError(f"{path}: tensor {name} is {file.tensors[name].dtype}, needs f32")
    return np.frombuffer(file.data(name), "<f4")


def _sound(path: Path, name: str, values: Floats) -> Floats:
    sound = np.isfinite(values) & (values >= 0)
    if not sound.all():
        at = int((~sound).argmax())
        raise ModelError(f"{path}: importance {at} of {name} is {values[at]}, needs 0 or more")
    return values


class _Entries:
    """A reader of the numbers and texts of the older format."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, nbytes: int) -> bytes:
        if not 0 <= nbytes <= len(self.data) - self.at:
            raise GGUFError(
                f"{self.path}: needs {nbytes} bytes at offset {self.at}, "
                f"{len(self.data) - self.at} are left; it is not an importance matrix, or truncated"
            )
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def number(self) -> int:
        return struct.unpack("<i", self.take(4))[0]


def _read_dat(path: Path, data: bytes) -> Importances:
    entries, values = _Entries(path, data), dict[str, Floats]()
    for _ in range(entries.number()):
        length = entries.number()
        name = entries.take(min(length, _MAX_NAME)).decode("utf-8", "replace")
        calls, count = entries.number(), entries.number()
        sums: Floats = np.frombuffer(entries.take(4 * count), "<f4")
        values[name] = _sound(path, name, np.divide(sums, np.float32(max(calls, 1))))
    if not values:
        raise ModelError(f"{path}: 0 entries, needs importances")
    # Files of the first versions end after their entries.
    return Importances(path, values, entries.number() if entries.at < len(data) else 0)
