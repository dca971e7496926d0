"""Models by their path: GGUF files, and Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

from wgpu_backend.errors import GGUFError
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.files.huggingface.folder import CONFIG, open_folder


def open_model_file(path: str | Path, check_types: bool = True) -> GGUFFile:
    """Open a GGUF file or a folder.

    Parameters
    ----------
    path : str or Path
    check_types : bool
        Refuse tensors of types that no kernel here reads, as `open_gguf` does.

    Raises
    ------
    ModelError, TokenizerError
        As `open_gguf` and `open_folder`.
    """
    path = Path(path)
    try:
        is_folder = path.is_dir()
    except OSError:  # a name that is too long, which opening tells
        is_folder = False
    if not is_folder:
        return open_gguf(path, check_types)
    if not (path / CONFIG).exists():
        raise GGUFError(
            f"{path}: a directory without {CONFIG}, needs a GGUF file or a model's folder"
        )
    return open_folder(path)
