"""The search for a language model's tower, its encoder of pictures and sound.

It is in the model's own file or folder, or in an mmproj file of the same folder.
"""

from __future__ import annotations

from pathlib import Path

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.gguf.one_file import is_lone_tower, lone_tower, own_tower
from wgpu_backend.files.gguf.parts import TOWER_ARCHITECTURE, tower_part
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.files.huggingface.folder import Folder
from wgpu_backend.files.huggingface.tower import open_tower_folder


def open_tower(file: GGUFFile, mmproj: Path | None = None) -> GGUFFile | None:
    """Open the tower of a language model.

    Parameters
    ----------
    file : GGUFFile
        The open file or folder of the language model, as `text_part` made it.
    mmproj : Path or None
        File or folder of the tower; None to look in the model's own file or folder, then for the
        only ``mmproj*.gguf`` of the folder that fits.

    Returns
    -------
    GGUFFile or None
        The tower as an mmproj file; None if there is none.

    Raises
    ------
    ModelError
        The file is damaged or is not a tower, or several files in the folder fit.
    """
    if mmproj is not None:
        return _open(mmproj, file.config)
    if isinstance(file, Folder):
        return open_tower_folder(file.path)
    return own_tower(file) or _find_nearby(file)


def _open(path: Path, text: Config) -> GGUFFile:
    if path.is_dir():
        found = open_tower_folder(path)
        if found is None:
            raise ModelError(f"{path}: has no tower for pictures or sound of a known kind")
        return found
    file = open_gguf(path)
    try:
        return lone_tower(file) if is_lone_tower(file) else tower_part(file, text)
    except BaseException:
        file.close()
        raise


def tower_path(model: Path) -> Path:
    """Return the file of the tower that `create` writes for a model's file."""
    return model.with_name(f"mmproj-{model.stem}.gguf")


def find_towers(file: GGUFFile) -> list[Path]:
    """Return the mmproj files in a model's folder that have the model's width.

    A file with the model's own name in its name is the only one.
    """
    own = tower_path(file.path)
    if own.is_file() and _fits(own, file):
        return [own]
    # The model's own file may also have mmproj in its name.
    candidates = sorted({*file.path.parent.glob("*mmproj*.gguf")} - {file.path})
    return [path for path in candidates if _fits(path, file)]


def _find_nearby(file: GGUFFile) -> GGUFFile | None:
    """Open the mmproj file in a model's folder that has the model's width; raise for several."""
    fitting = find_towers(file)
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting)
        raise ModelError(f"{file.path}: several towers fit it: {names}; pass one as mmproj")
    return _open(fitting[0], file.config) if fitting else None


def is_tower(path: Path) -> bool:
    """Return whether a file is an mmproj file; raises `GGUFError` for a damaged one."""
    with open_gguf(path, check_types=False) as file:
        return _is_tower(file)


def _is_tower(file: GGUFFile) -> bool:
    return file.config.architecture == TOWER_ARCHITECTURE or is_lone_tower(file)


def require_fitting_tower(path: Path, text: GGUFFile) -> None:
    """Check that the rows of an mmproj file have the width of a language model.

    Raises
    ------
    ModelError
        They have another one, or the file is no mmproj file.
    """
    with open_gguf(path, check_types=False) as file:
        if not _is_tower(file):
            raise ModelError(
                f"{path.name}: architecture {file.config.architecture!r}, needs "
                f"{TOWER_ARCHITECTURE!r}: a tower for pictures or sound"
            )
        found, needed = _list_widths(file), _list_needed(text)
    if set(needed).isdisjoint(found):
        shown = [" or ".join(map(str, dict.fromkeys(each))) or "no" for each in (found, needed)]
        raise ModelError(
            f"{path.name}: its rows have {shown[0]} columns, the embeddings of {text.path.name} "
            f"{shown[1]}; needs the mmproj file that was made with this model"
        )


def _list_widths(file: GGUFFile) -> list[int]:
    """Return the columns that the rows of an mmproj file may have."""
    wide = [f"{part}.projection_dim" for part in ("vision", "audio")]
    widths = [file.config.uint(key) for key in wide if key in file.config]
    # In files of LLaVA and MiniCPM-V the key has another width than the rows.
    last = [file.tensors.get(name) for name in ("mm.2.weight", "resampler.proj.weight")]
    return [*filter(None, widths), *(each.shape[0] for each in last if each is not None)]


def _list_needed(text: GGUFFile) -> list[int]:
    """Return the columns of rows that fit a model."""
    # The matrix has the width of vectors that texts share with pictures.
    vector = text.tensors.get("dense_2.weight")
    width = text.config.uint("embedding_length", 0)
    return [width] if vector is None else [width, vector.shape[0]]


def _fits(path: Path, text: GGUFFile) -> bool:
    """Return whether a file is a tower with a language model's width."""
    try:
        with open_gguf(path) as file:
            if not _is_tower(file):
                return False
            return not set(_list_needed(text)).isdisjoint(_list_widths(file))
    # A damaged file in the model's folder is ignored.
    except (ModelError, OSError):
        return False
