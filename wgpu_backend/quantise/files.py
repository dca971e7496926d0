"""`quantize`: a GGUF file written again in other types, tensor by tensor."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from wgpu_backend.config import Value
from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.errors import DTypeError, ModelError, OptionError
from wgpu_backend.gguf_file import GGUFFile, open_gguf
from wgpu_backend.gguf_header import TensorInfo
from wgpu_backend.gguf_writer import OutgoingTensor, write_gguf
from wgpu_backend.quantise.decoding import decoded
from wgpu_backend.quantise.importance import Importances, read_importances
from wgpu_backend.quantise.mixes import Mix, mix_named, tensor_types
from wgpu_backend.quantise.rows import quantised_pieces
from wgpu_backend.quantise.search import Floats

# Values that a thread has in memory at a time, and bytes that are copied at a time.
_SLAB, _COPIED = 1 << 18, 1 << 22
_VERSION = 2  # of the formats: GGML_QNT_VERSION
# Keys that are no longer true: the result is one file, aligned to 32 bytes.
_DROPPED = ("split.no", "split.count", "split.tensors.count", "general.alignment")


@dataclass(frozen=True, slots=True)
class Report:
    """What was written.

    Parameters
    ----------
    path : Path
    mix : Mix
    types : Mapping of str to DType
        By the name of a tensor.
    nbytes_before, nbytes : int
        Of tensors, in the file that was read and in the one that was written.
    values : int
        Numbers in all tensors.
    unweighted : tuple of str
        Block-format tensors that the importance matrix says nothing of; none without one.
    """

    path: Path
    mix: Mix
    types: Mapping[str, DType]
    nbytes_before: int
    nbytes: int
    values: int
    unweighted: tuple[str, ...]

    @property
    def bits_per_weight(self) -> float:
        """Bits of tensors over their numbers."""
        return 8 * self.nbytes / self.values


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
    """Write a GGUF file again with its matrices in another type.

    Types of tensors and bytes of blocks are those of llama.cpp's ``llama-quantize``. Norms, biases,
    routers, convolutions and other small tensors stay as they are.

    Parameters
    ----------
    source, target : str or Path
        GGUF files. `target` has another name until it is whole.
    dtype : str
        A type or mix by llama.cpp's name, any case: ``"Q4_K_M"``, ``"Q8_0"``, ``"BF16"``.
    importance : str, Path or None
        Importance matrix that ``llama-imatrix`` wrote, GGUF or ``.dat``.
    allow_requantize : bool
        Take values that were quantised before, which costs more accuracy than quantising once.
    threads : int or None
        None for one a core.
    progress : callable or None
        Called with the share of bytes written, 0 to 1; what it raises ends the work.

    Returns
    -------
    Report

    Raises
    ------
    OptionError
        There is no such type.
    ModelError, GGUFError
        A file is damaged, quantised already, or has values that the type cannot hold; or there is
        no room. Nothing is written then.
    """
    source, target, mix = Path(source), Path(target), mix_named(dtype)
    if threads is not None and threads < 1:
        raise OptionError(f"threads: {threads}, needs at least 1")
    matrix = None if importance is None else read_importances(Path(importance))
    with ExitStack() as stack:
        file = stack.enter_context(open_gguf(source, check_types=False))
        infos = list(file.tensors.values())
        types = tensor_types(mix, file.config, infos, weighted=matrix is not None)
        _check(file, target, mix, types, matrix, allow_requantize)
        weights = {} if matrix is None else {info.name: matrix.of(info) for info in infos}
        threads = threads or os.cpu_count() or 1
        pool = ThreadPoolExecutor(threads)
        stack.callback(pool.shutdown, cancel_futures=True)

        def outgoing(info: TensorInfo) -> OutgoingTensor:
            dtype, importances = types[info.name], weights.get(info.name)
            pieces = partial(_pieces, file, info, dtype, importances, pool, threads or 1)
            return OutgoingTensor(info.name, dtype, info.shape, pieces)

        tensors = [outgoing(info) for info in infos]
        write_gguf(target, _metadata(file, mix, matrix), tensors, progress)
    unweighted = [
        name for name, kind in types.items() if kind.quantised and weights.get(name) is None
    ]
    return Report(
        target,
        mix,
        types,
        sum(info.nbytes for info in infos),
        sum(tensor.nbytes for tensor in tensors),
        sum(math.prod(info.shape) for info in infos),
        () if matrix is None else tuple(unweighted),
    )


def _check(
    file: GGUFFile,
    target: Path,
    mix: Mix,
    types: Mapping[str, DType],
    matrix: Importances | None,
    allow_requantize: bool,
) -> None:
    """Refuse what cannot be done before anything is written."""
    path, count = file.path, file.config.uint("split.count", 1)
    if target.exists() and target.samefile(path):
        raise ModelError(f"{target}: the file to read and the one to write are the same")
    if count > 1:
        raise ModelError(f"{path}: one of {count} parts; merge them with llama-gguf-split --merge")
    for info in file.tensors.values():
        wanted = types[info.name]
        if wanted == info.dtype:
            continue
        if info.dtype.quantised and not allow_requantize:
            raise ModelError(
                f"{path}: tensor {info.name} is {info.dtype} already, quantising it to {wanted} "
                "loses accuracy twice; take a file in F32, F16 or BF16, or --allow-requantize"
            )
        if not info.dtype.quantised and info.dtype not in (F32, F16, BF16):
            raise ModelError(f"{path}: tensor {info.name} is {info.dtype}, needs floats")
        if mix.name == "Q2_K_S" and wanted.name == "q2_k" and matrix is None:
            raise OptionError(f"{mix.name}: needs an importance matrix, or take Q2_K")


def _metadata(
    file: GGUFFile, mix: Mix, matrix: Importances | None
) -> dict[str, Value | np.generic]:
    kept: dict[str, Value | np.generic] = {
        key: file.numbers[key].type(value) if key in file.numbers else value
        for key, value in file.metadata.items()
        if key not in _DROPPED
    }
    kept["general.quantization_version"] = np.uint32(_VERSION)
    kept["general.file_type"] = np.uint32(mix.number)
    if matrix is not None:
        kept["quantize.imatrix.file"] = matrix.path.name
        kept["quantize.imatrix.entries_count"] = np.int32(len(matrix.values))
        kept["quantize.imatrix.chunks_count"] = np.int32(matrix.chunks)
    return kept


def _pieces(
    file: GGUFFile,
    info: TensorInfo,
    dtype: DType,
    importance: Floats | None,
    pool: ThreadPoolExecutor,
    threads: int,
) -> Iterator[bytes]:
    """Bytes of a tensor in order, made by threads that are a few pieces ahead."""
    if dtype == info.dtype:
        yield from _copied(file, info)
        return
    cols, experts = info.shape[-1], 1 if importance is None else len(importance)
    rows = math.prod(info.shape[:-1])
    each, step = rows // experts, max(1, _SLAB // cols)
    under_way: deque[Future[bytes]] = deque()
    for expert in range(experts):
        weights = None if importance is None else importance[expert]
        for first in range(expert * each, (expert + 1) * each, step):
            last = min(first + step, (expert + 1) * each)
            under_way.append(pool.submit(_slab, file, info, dtype, weights, first, last))
            if len(under_way) > 2 * threads:
                yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _copied(file: GGUFFile, info: TensorInfo) -> Iterator[bytes]:
    source = file.source(info.name)
    for start in range(0, info.nbytes, _COPIED):
        piece = bytearray(min(_COPIED, info.nbytes - start))
        source.read_into(memoryview(piece), start)
        yield bytes(piece)


def _slab(
    file: GGUFFile, info: TensorInfo, dtype: DType, weights: Floats | None, first: int, last: int
) -> bytes:
    """Some rows of a tensor in another type."""
    cols = info.shape[-1]
    nbytes = info.dtype.nbytes(cols)
    raw = bytearray((last - first) * nbytes)
    file.source(info.name).read_into(memoryview(raw), first * nbytes)
    values = as_floats(raw, info.dtype).reshape(last - first, cols)
    try:
        pieces = [piece.tobytes() for piece in quantised_pieces(values, dtype, weights, first)]
    except DTypeError as error:
        raise ModelError(f"{file.path}: tensor {info.name}: {error}") from None
    return b"".join(pieces)


def as_floats(raw: bytes | bytearray, dtype: DType) -> Floats:
    """Values in f32 of bytes of a float type or block format; one dimension."""
    if dtype.quantised:
        blocks = np.frombuffer(raw, np.uint8).reshape(-1, dtype.block_nbytes)
        return decoded(dtype, blocks).reshape(-1)
    if dtype == BF16:
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(raw, "<f2" if dtype == F16 else "<f4").astype(np.float32, copy=False)
