"""Safetensors files: the places of tensors, from an untrusted header.

::

    n │ {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, …} │ data
    8   n bytes of JSON

The format is https://github.com/huggingface/safetensors#format: offsets count from the end of the
header, and the tensors fill the rest of the file without holes or overlaps.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.file_bytes import FileBytes
from wgpu_backend.files.huggingface.json_files import parse_json

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16,
    "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
# The limit of the format's own reader.
_MAX_HEADER_NBYTES = 100_000_000
_MAX_DIMS = 8


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The place and type of one tensor.

    Parameters
    ----------
    file : FileBytes
        The open file.
    name : str
        As in the file: ``model.layers.0.self_attn.q_proj.weight``.
    kind : str
        The format's name of its type: ``BF16``.
    shape : tuple of int
        Row-major.
    offset, nbytes : int
        First byte and number of bytes in the file.
    """

    file: FileBytes
    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(file: FileBytes) -> dict[str, StoredTensor]:
    """Read the tensors of a file's header.

    Raises
    ------
    ModelError
        The header does not fit the file, or itself; the message names the tensor and the numbers.
    """
    header, start = _header(file)
    # The format reserves this name for texts, so no tensor may have it.
    header.pop("__metadata__", None)
    tensors = {name: _tensor(file, name, entry, start) for name, entry in header.items()}
    _require_filled(file.path, tensors, start, file.nbytes)
    return tensors


def read_metadata(file: FileBytes) -> dict[str, str]:
    """Read a file's metadata; ModelError if it is not a table of strings."""
    found: object = _header(file)[0].get("__metadata__", {})
    if not isinstance(found, dict):
        raise ModelError(f"{file.path}: __metadata__ is not a JSON object")
    return {str(k): str(v) for k, v in cast("dict[Any, Any]", found).items()}


def _header(file: FileBytes) -> tuple[dict[str, Any], int]:
    """Return the header, and the place where tensors begin."""
    path = file.path
    if file.nbytes < 8:
        raise ModelError(f"{path}: {file.nbytes} bytes, a safetensors file has at least 8")
    (nbytes,) = struct.unpack("<Q", file.read("header", 0, 8))
    if nbytes > min(file.nbytes - 8, _MAX_HEADER_NBYTES):
        raise ModelError(
            f"{path}: header of {nbytes} bytes, {file.nbytes - 8} are left, needs at most "
            f"{_MAX_HEADER_NBYTES}"
        )
    return dict(parse_json(file.read("header", 8, nbytes), f"{path}: header")), 8 + nbytes


def open_safetensors(path: Path) -> tuple[FileBytes, dict[str, StoredTensor]]:
    """Open a file and read its header; the caller closes it.

    Raises
    ------
    ModelError
        As `read_header`, or there is no such file.
    """
    try:
        file = FileBytes(path)
    except GGUFError as error:
        # FileBytes raises this for any kind of file.
        raise ModelError(str(error)) from None
    try:
        return file, read_header(file)
    except BaseException:
        file.close()
        raise


def _tensor(file: FileBytes, name: str, entry: object, start: int) -> StoredTensor:
    subject = f"{file.path}: tensor {name[:80]!r}"
    if not isinstance(entry, dict):
        raise ModelError(f"{subject}: is not a JSON object, needs dtype, shape and data_offsets")
    fields = cast("Mapping[str, Any]", entry)
    kind = fields.get("dtype")
    if not isinstance(kind, str) or kind not in BITS:
        raise ModelError(f"{subject}: dtype {str(kind)[:40]!r}, needs one of {', '.join(BITS)}")
    shape = _counts(f"{subject}: shape", fields.get("shape"))
    if len(shape) > _MAX_DIMS:
        raise ModelError(f"{subject}: {len(shape)} dimensions, at most {_MAX_DIMS}")
    offsets = _counts(f"{subject}: data_offsets", fields.get("data_offsets"))
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelError(f"{subject}: data_offsets {list(offsets)}, needs a begin and an end")
    begin, end = offsets
    needed = math.prod(shape) * BITS[kind] // 8
    if end - begin != needed:
        raise ModelError(
            f"{subject}: data_offsets hold {end - begin} bytes, {kind} of shape {list(shape)} "
            f"has {needed}"
        )
    if start + end > file.nbytes:
        raise ModelError(
            f"{subject}: ends at byte {start + end}, the file has {file.nbytes}; it is truncated"
        )
    return StoredTensor(file, name, kind, shape, start + begin, needed)


def _counts(subject: str, value: object) -> tuple[int, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    # JSON's true is an int to Python.
    if not all(type(item) is int and 0 <= item < 2**63 for item in items):
        raise ModelError(f"{subject} is {str(items)[:60]}, needs a list of whole numbers")
    return tuple(cast("list[int]", items))


def _require_filled(
    path: Path, tensors: Mapping[str, StoredTensor], start: int, nbytes: int
) -> None:
    """Check that tensor ranges are contiguous; reject overlaps and gaps."""
    end = start
    # By size as well: an empty tensor begins where the next one does, and must come first.
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            raise ModelError(
                f"{path}: tensor {tensor.name[:80]!r}: starts at byte {tensor.offset}, what is "
                f"before it ends at {end}"
            )
        end += tensor.nbytes
    if end != nbytes:
        raise ModelError(f"{path}: tensors end at byte {end}, the file has {nbytes}")
