"""Creation of GGUF files from Hugging Face checkpoints: the model's, and that of its tower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path

from wgpu_backend.dtypes import DType
from wgpu_backend.files.huggingface.folder import Folder, open_folder
from wgpu_backend.files.huggingface.tensors import main_type
from wgpu_backend.files.huggingface.tower import open_tower_folder
from wgpu_backend.files.quantize.files import Report, write_as
from wgpu_backend.files.quantize.importance import read_importances
from wgpu_backend.files.quantize.mixes import Mix, find_mix, tensor_types
from wgpu_backend.files.tower_files import tower_path


def create(
    out: str | PathLike[str],
    folder: str | PathLike[str],
    dtype: str | DType | None = None,
    *,
    importance: str | Path | None = None,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Write a GGUF file from a Hugging Face checkpoint.

    Tensors are read, converted and written a few rows at a time, so a file of any size needs little
    memory. `out` appears once it is complete, and an existing file stays until then. The result
    equals that of `quantize` for the folder's own file, which need not be written for it.

    A tower for pictures or sound goes to ``mmproj-NAME.gguf`` in the same folder, in the folder's
    types, where loading finds it.

    Parameters
    ----------
    out : path-like
        The file to write.
    folder : path-like
        Folder with config.json, tokenizer.json or tokenizer.model, and safetensors.
    dtype : str, DType or None
        A type or mix by llama.cpp's name, any case: ``"Q4_K_M"``, ``"Q8_0"``, ``"BF16"``; None for
        the types in the folder. Tensors in block formats keep them. Vectors and small tables are
        f32 in any file.
    importance : str, Path or None
        Importance matrix from ``llama-imatrix``, GGUF or ``.dat``.
    threads : int or None
        Number of threads; None for one per core.
    progress : callable or None
        Called with the share that is written, 0 to 1; an exception from it ends writing.

    Returns
    -------
    Report

    Raises
    ------
    ModelError, TokenizerError
        The folder is incomplete, damaged or of an unknown kind, or a value is out of the type's
        range.
    OptionError
        There is no such type.
    OSError
        The file cannot be written.
    """
    mix = None if dtype is None else find_mix(str(dtype))
    matrix = None if importance is None else read_importances(Path(importance))
    with open_folder(folder) as opened:
        types = _types(opened, mix, weighted=matrix is not None)
        mix = mix or find_mix(str(main_type(opened.values)))
        report = write_as(
            opened, Path(out), mix, types, matrix=matrix, threads=threads, progress=progress
        )
    return replace(report, tower=_write_tower(Path(folder), tower_path(report.path), threads))


def _write_tower(folder: Path, out: Path, threads: int | None) -> Path | None:
    """Write the tower of a checkpoint as an mmproj file, and return its path; None without one."""
    tower = open_tower_folder(folder)
    if tower is None:
        return None
    with tower:
        mix = find_mix(str(main_type(tower.values)))
        write_as(tower, out, mix, _types(tower, None, weighted=False), threads=threads)
    return out


def _types(folder: Folder, mix: Mix | None, *, weighted: bool) -> dict[str, DType]:
    """Return the type of each tensor: the mix's, or its own if it is in blocks."""
    infos = list(folder.tensors.values())
    if mix is None:
        return {info.name: info.dtype for info in infos}
    types = tensor_types(mix, folder.config, infos, weighted=weighted)
    return types | {info.name: info.dtype for info in infos if info.dtype.quantised}
