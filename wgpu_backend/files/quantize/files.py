"""`quantize`: a GGUF file rewritten in other types, tensor by tensor."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.errors import DTypeError, ModelError, OptionError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.gguf.header import TensorInfo
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.files.gguf.writer import OutgoingTensor, copy_metadata, write_gguf
from wgpu_backend.files.quantize.decoding import decode_blocks
from wgpu_backend.files.quantize.importance import Importances, read_importances
from wgpu_backend.files.quantize.mixes import Mix, find_mix, tensor_types
from wgpu_backend.files.quantize.rows import quantize_pieces
from wgpu_backend.files.quantize.search import Floats

# Values that one thread, and all threads together, may have in memory, in whole slabs.
_SLAB, _AHEAD = 1 << 18, 1 << 24
# GGML_QNT_VERSION, the version of the formats.
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Report:
    """A summary of a written file.

    Parameters
    ----------
    path : Path
        The file.
    mix : Mix
        Its mix of types.
    types : Mapping of str to DType
        Types by the name of a tensor.
    nbytes_before, nbytes : int
        Bytes of tensors, in the file that was read and in the one that was written.
    values : int
        Number of values in all tensors.
    unweighted : tuple of str
        Block-format tensors that are not in the importance matrix; empty without a matrix.
    tower : Path or None
        File of the model's tower for pictures or sound, if one was written.
    """

    path: Path
    mix: Mix
    types: Mapping[str, DType]
    nbytes_before: int
    nbytes: int
    values: int
    unweighted: tuple[str, ...]
    tower: Path | None = None

    @property
    def bits_per_weight(self) -> float:
        """Return the mean number of bits per value over all tensors."""
        return 8 * self.nbytes / max(self.values, 1)


def quantize(
    source: str | Path,
    target: str | Path,
    dtype: str,
    *,
    importance: str | Path | None = None,
    allow_requantize: bool = False,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Rewrite a GGUF file with its matrices in another type.

    Types of tensors and bytes of blocks equal those of llama.cpp's ``llama-quantize``. Norms,
    biases, routers, convolutions and other small tensors keep their types.

    Parameters
    ----------
    source, target : str or Path
        GGUF files; of a split model, the first part. `target` has a temporary name until it is
        complete.
    dtype : str
        A type or mix by llama.cpp's name, any case: ``"Q4_K_M"``, ``"Q8_0"``, ``"BF16"``.
    importance : str, Path or None
        Importance matrix from ``llama-imatrix``, GGUF or ``.dat``.
    allow_requantize : bool
        Accept quantised values, which costs more accuracy than quantising once.
    threads : int or None
        Number of threads; None for one per core.
    progress : callable or None
        Called with the share of bytes written, 0 to 1; an exception from it ends the work.

    Returns
    -------
    Report

    Raises
    ------
    OptionError
        There is no such type.
    ModelError, GGUFError
        A file is damaged, already quantised, or has values out of the type's range; or there is no
        room. Nothing is written then.
    """
    source, target, mix = Path(source), Path(target), find_mix(dtype)
    matrix = None if importance is None else read_importances(Path(importance))
    with open_gguf(source, check_types=False) as file:
        infos = list(file.tensors.values())
        types = tensor_types(mix, file.config, infos, weighted=matrix is not None)
        _require_other(file, target)
        if not allow_requantize:
            _require_floats(file, types)
        return write_as(file, target, mix, types, matrix=matrix, threads=threads, progress=progress)


def write_as(
    file: GGUFFile,
    target: Path,
    mix: Mix,
    types: Mapping[str, DType],
    *,
    matrix: Importances | None = None,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Write an open file with its tensors in other types, some rows at a time.

    Parameters
    ----------
    file : GGUFFile
        The file, or an object with the same interface.
    target : Path
        The file to write.
    mix : Mix
        Mix to record in the file.
    types : Mapping of str to DType
        Type of every tensor.
    matrix, threads, progress
        As in `quantize`, with the matrix already read.

    Raises
    ------
    OptionError, ModelError, GGUFError
        As `quantize`.
    """
    if threads is not None and threads < 1:
        raise OptionError(f"threads: {threads}, needs at least 1")
    _require_possible(file, mix, types, matrix)
    infos = list(file.tensors.values())
    weights = {} if matrix is None else {info.name: matrix.find(info) for info in infos}
    threads = threads or os.cpu_count() or 1
    pool = ThreadPoolExecutor(threads)
    tensors = [
        _Tensor(file, info, types[info.name], weights.get(info.name)).outgoing(pool, threads)
        for info in infos
    ]
    try:
        write_gguf(target, _metadata(file, mix, matrix), tensors, progress)
    finally:
        # After a failure, slabs that were prepared ahead are of no use.
        pool.shutdown(cancel_futures=True)
    return Report(
        target,
        mix,
        types,
        sum(info.nbytes for info in infos),
        sum(tensor.nbytes for tensor in tensors),
        sum(math.prod(info.shape) for info in infos),
        () if matrix is None else _find_unweighted(types, weights),
    )


def _find_unweighted(
    types: Mapping[str, DType], weights: Mapping[str, Floats | None]
) -> tuple[str, ...]:
    return tuple(name for name, kind in types.items() if kind.quantised and weights[name] is None)


def _require_other(file: GGUFFile, target: Path) -> None:
    if target.exists() and any(target.samefile(path) for path in file.paths):
        raise ModelError(f"{target}: the file to read and the one to write are the same")


def _require_floats(file: GGUFFile, types: Mapping[str, DType]) -> None:
    for info in file.tensors.values():
        wanted = types[info.name]
        if wanted != info.dtype and info.dtype.quantised:
            raise ModelError(
                f"{file.path}: tensor {info.name} is {info.dtype} already, quantising it to "
                f"{wanted} loses accuracy twice; take a file in F32, F16 or BF16, or "
                "--allow-requantize"
            )


def _require_possible(
    file: GGUFFile, mix: Mix, types: Mapping[str, DType], matrix: Importances | None
) -> None:
    """Raise if a conversion is impossible, before anything is written."""
    for info in file.tensors.values():
        wanted = types[info.name]
        if wanted == info.dtype:
            continue
        if not info.dtype.quantised and info.dtype not in (F32, F16, BF16):
            raise ModelError(f"{file.path}: tensor {info.name} is {info.dtype}, needs floats")
        if mix.name == "Q2_K_S" and wanted.name == "q2_k" and matrix is None:
            raise OptionError(f"{mix.name}: needs an importance matrix, or take Q2_K")


def _metadata(
    file: GGUFFile, mix: Mix, matrix: Importances | None
) -> dict[str, Value | np.generic]:
    kept = copy_metadata(file)
    kept["general.quantization_version"] = np.uint32(_VERSION)
    kept["general.file_type"] = np.uint32(mix.number)
    if matrix is not None:
        kept["quantize.imatrix.file"] = matrix.path.name
        kept["quantize.imatrix.entries_count"] = np.int32(len(matrix.values))
        kept["quantize.imatrix.chunks_count"] = np.int32(matrix.chunks)
    return kept


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor that is copied from one file to another, in another type or the same."""

    file: GGUFFile
    info: TensorInfo
    dtype: DType
    importance: Floats | None

    @property
    def cols(self) -> int:
        return self.info.shape[-1] if self.info.shape else 1

    def outgoing(self, pool: ThreadPoolExecutor, threads: int) -> OutgoingTensor:
        pieces = partial(self._pieces, pool, threads)
        return OutgoingTensor(self.info.name, self.dtype, self.info.shape, pieces)

    def _pieces(self, pool: ThreadPoolExecutor, threads: int) -> Iterator[bytes]:
        """Yield bytes in order, made by threads that are a few slabs ahead."""
        step = self._slab_rows()
        ahead = min(2 * threads, _AHEAD // (step * max(1, self.cols)))
        under_way: deque[Future[bytes]] = deque()
        for first, last, weights in self._slabs(step):
            under_way.append(pool.submit(self._slab, first, last, weights))
            if len(under_way) > ahead:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()

    def _slab_rows(self) -> int:
        """Return the rows of a slab, a multiple of the rows that are read together."""
        together = self.file.rows_together(self.info.name)
        rows = max(1, _SLAB // max(1, self.cols))
        return max(together, rows // together * together)

    def _slabs(self, step: int) -> Iterator[tuple[int, int, Floats | None]]:
        """Yield the row range of each slab, and the importances of its columns."""
        if not self.info.nbytes:
            return
        experts = 1 if self.importance is None else len(self.importance)
        each = math.prod(self.info.shape[:-1]) // experts
        for expert in range(experts):
            weights = None if self.importance is None else self.importance[expert]
            end = (expert + 1) * each
            for first in range(expert * each, end, step):
                yield first, min(first + step, end), weights

    def _slab(self, first: int, last: int, weights: Floats | None) -> bytes:
        """Return some rows in the target type."""
        held, row_nbytes = self.info.dtype, self.info.dtype.nbytes(self.cols)
        raw = bytearray((last - first) * row_nbytes)
        self.file.source(self.info.name).read_into(memoryview(raw), first * row_nbytes)
        if self.dtype == held:
            return bytes(raw)
        values = as_floats(raw, held).reshape(last - first, self.cols)
        pieces = quantize_pieces(values, self.dtype, weights, first)
        try:
            return b"".join(piece.tobytes() for piece in pieces)
        except DTypeError as error:
            raise ModelError(f"{self.file.path}: tensor {self.info.name}: {error}") from None


def as_floats(raw: bytes | bytearray, dtype: DType) -> Floats:
    """Decode bytes of a float type or block format to f32, in one dimension."""
    if dtype.quantised:
        blocks = np.frombuffer(raw, np.uint8).reshape(-1, dtype.block_nbytes)
        return decode_blocks(dtype, blocks).reshape(-1)
    if dtype == BF16:
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(raw, "<f2" if dtype == F16 else "<f4").astype(np.float32, copy=False)
