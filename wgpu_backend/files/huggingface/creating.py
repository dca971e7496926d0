"""GGUF files made of Hugging Face folders."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from wgpu_backend.dtypes import DType
from wgpu_backend.files.huggingface.folder import Folder, open_folder
from wgpu_backend.files.huggingface.tensors import main_type
from wgpu_backend.files.quantize.files import Report, write_as
from wgpu_backend.files.quantize.importance import read_importances
from wgpu_backend.files.quantize.mixes import Mix, mix_named, tensor_types


def create(
    out: str | PathLike[str],
    folder: str | PathLike[str],
    dtype: str | DType | None = None,
    *,
    importance: str | Path | None = None,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Write a GGUF file of a Hugging Face folder.

    Tensors are read, converted and written a few rows at a time, so that a file of any size needs
    little memory. `out` is there once it is whole, and what was there before stays until then. It
    is what `quantize` makes of the folder's own file, which needs not be written for it.

    Parameters
    ----------
    out : path-like
        The file.
    folder : path-like
        With config.json, tokenizer.json or tokenizer.model, and safetensors.
    dtype : str, DType or None
        A type or mix by llama.cpp's name, any case: ``"Q4_K_M"``, ``"Q8_0"``, ``"BF16"``; None for
        the types that the folder has. What the folder has in blocks stays in them. Vectors and
        small tables are f32 in any file.
    importance : str, Path or None
        Importance matrix that ``llama-imatrix`` wrote, GGUF or ``.dat``.
    threads : int or None
        None for one a core.
    progress : callable or None
        Called with the share that is written, 0 to 1; what it raises ends writing.

    Returns
    -------
    Report

    Raises
    ------
    ModelError, TokenizerError
        The folder is incomplete, damaged or of a kind that is not known, or has a value that is
        beyond the type's range.
    OptionError
        There is no such type.
    OSError
        The file cannot be written.
    """
    mix = None if dtype is None else mix_named(str(dtype))
    matrix = None if importance is None else read_importances(Path(importance))
    with open_folder(folder) as opened:
        types = _types(opened, mix, weighted=matrix is not None)
        mix = mix or mix_named(str(main_type(opened.values)))
        return write_as(
            opened, Path(out), mix, types, matrix=matrix, threads=threads, progress=progress
        )


def _types(folder: Folder, mix: Mix | None, *, weighted: bool) -> dict[str, DType]:
    """Type of each tensor: its own, or the mix's where it is in no blocks."""
    infos = list(folder.tensors.values())
    if mix is None:
        return {info.name: info.dtype for info in infos}
    types = tensor_types(mix, folder.config, infos, weighted=weighted)
    return types | {info.name: info.dtype for info in infos if info.dtype.quantised}
