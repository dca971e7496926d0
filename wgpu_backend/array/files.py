"""Arrays in files: safetensors, NumPy's npy and npz, and GGUF.

`load` returns a mapping for a file with several arrays. It reads each array on access, so a large
file costs only the arrays that are used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from wgpu_backend.array import devices
from wgpu_backend.array.base import wrap
from wgpu_backend.array.creation import asarray
from wgpu_backend.dtypes import BF16, F32, DType, f32_to_bf16, named
from wgpu_backend.errors import DTypeError, ModelError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.files.gguf.writer import OutgoingTensor, whole_file, write_gguf
from wgpu_backend.files.huggingface.safetensors import (
    StoredTensor,
    open_safetensors,
    read_metadata,
)
from wgpu_backend.graph.spec import Spec

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

_SAFE_NAMES = {
    "bool": "BOOL", "u8": "U8", "i8": "I8", "u16": "U16", "i16": "I16", "f16": "F16",
    "bf16": "BF16", "u32": "U32", "i32": "I32", "f32": "F32", "u64": "U64", "i64": "I64",
    "f64": "F64",
}  # fmt: skip
# bfloat16 in npy and npz: NumPy has no such type, and MLX and ml_dtypes write raw pairs of bytes.
_BF16 = np.dtype("V2")
_OWN_NAMES = {safe: own for own, safe in _SAFE_NAMES.items()}


class Arrays(Mapping[str, "Array"]):
    """The arrays of a file, each read on access.

    Parameters
    ----------
    read : callable
        Gives the array of a name.
    close : callable
        Closes the file.
    """

    def __init__(
        self, names: list[str], read: Callable[[str], Array], close: Callable[[], None]
    ) -> None:
        self._names = dict.fromkeys(names)
        self._read = read
        self._close = close

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def close(self) -> None:
        """Close the file; arrays that were read stay."""
        self._close()

    def __del__(self) -> None:
        # `wx.load(path)["x"]` leaves the caller nothing to close.
        self._close()


@overload
def load(
    path: str | Path, *, return_metadata: Literal[False] = False, device: object = None
) -> Any: ...
@overload
def load(
    path: str | Path, *, return_metadata: Literal[True], device: object = None
) -> tuple[Any, dict[str, Any]]: ...
def load(path: str | Path, *, return_metadata: bool = False, device: object = None) -> Any:
    """Read arrays of a file by its suffix: npy, npz, safetensors or gguf.

    Parameters
    ----------
    return_metadata : bool
        Of safetensors and gguf: also return the metadata of the file, as a dictionary.

    Returns
    -------
    array, or mapping of str to Array
        The mapping reads each array on access. Tensors of GGUF files in block formats keep their
        format; products take them.

    Raises
    ------
    ModelError, GGUFError
        The file is damaged; the message has the place and both numbers.
    """
    where = Path(path)
    readers: dict[str, Callable[[Path, object], tuple[Any, dict[str, Any]]]] = {
        ".npy": _npy,
        ".npz": _npz,
        ".safetensors": _safetensors,
        ".gguf": _gguf,
    }
    if where.suffix not in readers:
        raise ModelError(f"load: {where} has no known suffix: {', '.join(readers)}")
    arrays, metadata = readers[where.suffix](where, device)
    return (arrays, metadata) if return_metadata else arrays


def _npy(path: Path, device: object) -> tuple[Any, dict[str, Any]]:
    try:
        # A pickle in a file could run code.
        return _from_numpy(np.load(path, allow_pickle=False), device), {}
    except (ValueError, EOFError, OSError) as error:
        raise ModelError(f"{path}: {error}") from None


def _npz(path: Path, device: object) -> tuple[Any, dict[str, Any]]:
    try:
        file = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ModelError(f"{path}: {error}") from None
    return Arrays(list(file.files), lambda name: _from_numpy(file[name], device), file.close), {}


def _from_numpy(values: Any, device: object) -> Array:
    """Upload values of NumPy; raw pairs of bytes are bfloat16, as MLX and ml_dtypes write it."""
    if values.dtype != _BF16:
        return asarray(values, device=device)
    return _upload(np.ascontiguousarray(values).tobytes(), BF16, values.shape, device)


def _safetensors(path: Path, device: object) -> tuple[Any, dict[str, Any]]:
    file, tensors = open_safetensors(path)
    arrays = Arrays(list(tensors), lambda name: _read_stored(tensors[name], device), file.close)
    return arrays, read_metadata(file)


def _read_stored(tensor: StoredTensor, device: object) -> Array:
    own = _OWN_NAMES.get(tensor.kind)
    if own is None:
        raise DTypeError(
            f"{tensor.file.path}: {tensor.name} is {tensor.kind}, which arrays do not have"
        )
    data = tensor.file.read(tensor.name, tensor.offset, tensor.nbytes)
    return _upload(bytes(data), named(own), tensor.shape, device)


def _upload(data: bytes, dtype: DType, shape: tuple[int, ...], device: object) -> Array:
    return wrap(devices.on(device).constant(data, dtype, shape))


def _gguf(path: Path, device: object) -> tuple[Any, dict[str, Any]]:
    file = open_gguf(path)
    arrays = Arrays(list(file.tensors), lambda name: _from_gguf(file, name, device), file.close)
    return arrays, dict(file.metadata)


def _from_gguf(file: GGUFFile, name: str, device: object) -> Array:
    info = file.tensors[name]
    data = file.data(name)
    # A block format has no empty tensors on a device.
    if info.dtype.quantised and not info.nbytes:
        return _upload(b"", F32, tuple(info.shape), device)
    if info.dtype.quantised:
        spec = Spec.dense(info.shape, info.dtype)
        return wrap(devices.on(device).weight(data, spec, name))
    return _upload(bytes(data), info.dtype, tuple(info.shape), device)


def save(path: str | Path, array: Array) -> None:
    """Write an array as npy; bf16 as raw pairs of bytes, as MLX does."""
    np.save(path, _as_numpy(array), allow_pickle=False)


def savez(path: str | Path, *arrays: Array, **named_arrays: Array) -> None:
    """Write several arrays as npz; those without a name are ``arr_0`` and so on."""
    np.savez(path, **_values(arrays, named_arrays))


def savez_compressed(path: str | Path, *arrays: Array, **named_arrays: Array) -> None:
    """Write several arrays as compressed npz; see `savez`."""
    np.savez_compressed(path, **_values(arrays, named_arrays))


def _values(arrays: tuple[Array, ...], named_arrays: Mapping[str, Array]) -> dict[str, Any]:
    numbered = {f"arr_{i}": a for i, a in enumerate(arrays)}
    return {name: _as_numpy(a) for name, a in (numbered | dict(named_arrays)).items()}


def _as_numpy(array: Array) -> Any:
    values = array.numpy()
    return f32_to_bf16(values).view(_BF16) if array.dtype == BF16 else values


def save_safetensors(
    path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays as safetensors, one after the other, each in its type.

    The file appears under its name when it is complete.

    Raises
    ------
    DTypeError
        The format has no such type, for example block formats.
    """
    where = Path(path)
    if not where.suffix:
        where = where.with_suffix(".safetensors")
    head: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, array in arrays.items():
        if array.dtype.name not in _SAFE_NAMES:
            raise DTypeError(f"save_safetensors: {name} is {array.dtype}, which the format lacks")
        kind = _SAFE_NAMES[array.dtype.name]
        place = [at, at + array.nbytes]
        head[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": place}
        at += array.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    # Data begins at a multiple of 8 bytes, as in files of the reference writer; spaces are legal.
    text += b" " * (-len(text) % 8)
    with whole_file(where, 8 + len(text) + at) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(_bytes(array))


def save_gguf(
    path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, Value] | None = None
) -> None:
    """Write arrays as GGUF, each in its type, with metadata.

    Raises
    ------
    DTypeError
        The format has no such type, for example unsigned integers.
    """
    where = Path(path)
    if not where.suffix:
        where = where.with_suffix(".gguf")
    for name, array in arrays.items():
        if array.dtype.ggml is None or array.dtype.quantised:
            raise DTypeError(f"save_gguf: {name} is {array.dtype}, which the format lacks")
    outgoing = [
        OutgoingTensor(name, array.dtype, array.shape, lambda array=array: [_bytes(array)])
        for name, array in arrays.items()
    ]
    write_gguf(where, metadata or {}, outgoing)


def _bytes(array: Array) -> bytes:
    values = array.numpy()
    stored = f32_to_bf16(values) if array.dtype == BF16 else values
    return np.ascontiguousarray(stored).tobytes()
