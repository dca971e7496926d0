"""GGUF files made of Hugging Face folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path

from wgpu_backend.dtypes import DType, dtype_of
from wgpu_backend.errors import DTypeError
from wgpu_backend.folders.encoding import pieces, require_writable
from wgpu_backend.folders.folder import Folder, file_type, open_folder
from wgpu_backend.folders.tensors import wanted_type
from wgpu_backend.gguf_writer import OutgoingTensor, write_gguf


def create(
    out: str | PathLike[str],
    folder: str | PathLike[str],
    dtype: str | DType | None = None,
    *,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a GGUF file of a Hugging Face folder.

    Tensors are read, converted and written a few rows at a time, so that a file of any size needs
    little memory. `out` is there once it is whole, and what was there before stays until then.

    Parameters
    ----------
    out : path-like
        The file.
    folder : path-like
        With config.json, tokenizer.json or tokenizer.model, and safetensors.
    dtype : str, DType or None
        Type of the matrices, one of `quantise.WRITABLE`: ``f16``, ``q8_0``, ``q4_k`` …; None for
        the types that the folder has. Vectors and small tables are f32 in any file.
    progress : callable or None
        Called with the share that is written, 0 to 1; what it raises ends writing.

    Raises
    ------
    ModelError, TokenizerError
        The folder is incomplete, damaged or of a kind that is not known.
    DTypeError
        The type is none that is written, or a value is beyond its range.
    OSError
        The file cannot be written.
    """
    wanted = None if dtype is None else dtype_of(dtype)
    if wanted is not None:
        require_writable(wanted)
    with open_folder(folder) as opened:
        metadata = dict(opened.metadata)
        if wanted is not None:
            metadata["general.file_type"] = file_type(wanted)
        tensors = [_outgoing(opened, name, wanted) for name in opened.tensors]
        write_gguf(Path(out), metadata, tensors, progress)


def _outgoing(folder: Folder, name: str, wanted: DType | None) -> OutgoingTensor:
    values = folder.values[name]
    held = folder.tensors[name].dtype
    dtype = held if wanted is None else wanted_type(name, values, wanted)

    def made() -> Iterator[bytes | memoryview]:
        try:
            yield from pieces(values, dtype)
        except DTypeError as error:
            raise DTypeError(f"{folder.path}: tensor {name}: {error}") from None

    return OutgoingTensor(name, dtype, values.shape, made)
