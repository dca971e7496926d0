"""Downloads of models from Hugging Face's Hub, for `Llama.from_pretrained`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from os import PathLike
from pathlib import Path
from typing import Any, cast

import huggingface_hub
from huggingface_hub import errors as hub_errors

from wgpu_backend.errors import ModelError, OptionError
from wgpu_backend.files.gguf.reader import PART_NAME

# File names in an error: repositories have hundreds, and errors are one line.
_MOST_NAMES = 30


def download(
    repo_id: str,
    filename: str,
    additional_files: Iterable[str],
    local_dir: str | PathLike[str] | None,
    cache_dir: str | PathLike[str] | None,
) -> Path:
    """Download the file that matches a pattern; of a split file, all parts.

    Parameters
    ----------
    repo_id : str
        ``OWNER/REPO``.
    filename : str
        A name, or a pattern such as ``*Q4_K_M.gguf`` or ``*Q8_0*-00001-of-*.gguf``.
    additional_files : iterable of str
        Patterns of further files to download.
    local_dir, cache_dir : path-like or None
        Where to put files; None for huggingface_hub's cache.

    Returns
    -------
    Path
        The file, or the first part of a split file.

    Raises
    ------
    OptionError
        A pattern matches no file, or several.
    ModelError
        The Hub has no such repository, or cannot be reached.
    """
    hf_hub_download = cast("Any", huggingface_hub).hf_hub_download
    folders = {
        name: None if folder is None else Path(folder)
        for name, folder in (("local_dir", local_dir), ("cache_dir", cache_dir))
    }
    try:
        files = list(huggingface_hub.list_repo_files(repo_id))
        # All names are checked before the first download, which may take long.
        name = _match(repo_id, files, filename)
        others = [_match(repo_id, files, pattern) for pattern in additional_files]
        names = [name, *_list_further_parts(repo_id, files, name), *others]
        paths: list[str] = [
            hf_hub_download(repo_id=repo_id, filename=each, **folders) for each in names
        ]
    except (hub_errors.HfHubHTTPError, hub_errors.HFValidationError, OSError) as error:
        # huggingface_hub's messages have several lines, with the reason in the first.
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"{repo_id}: {reason}") from error
    return Path(paths[0])


def _match(repo_id: str, files: Sequence[str], pattern: str) -> str:
    """Return the file that matches a pattern; of the parts of one split file, the first."""
    found = [each for each in files if fnmatch(each, pattern)]
    parts = [PART_NAME.fullmatch(each) for each in found]
    # One file if all matches are parts with the same name and the same number of parts.
    if len({part and part.group(1, 3) for part in parts}) == 1 and all(parts):
        found = [min(found)]
    if len(found) == 1:
        return found[0]
    names = found or files
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = "they are" if found else "there are"
    raise OptionError(
        f"{repo_id}: {pattern!r} fits {len(found)} of {len(files)} files, needs one; "
        f"{listed} {', '.join(names[:_MOST_NAMES])}{more}"
    )


def _list_further_parts(repo_id: str, files: Sequence[str], name: str) -> list[str]:
    found = PART_NAME.fullmatch(name)
    if found is None:
        return []
    names = [f"{found[1]}-{n:05}-of-{found[3]}.gguf" for n in range(1, int(found[3]) + 1)]
    missing = [posixpath.basename(each) for each in names if each not in files]
    if missing:
        raise ModelError(f"{repo_id}: has no {', '.join(missing[:9])}")
    return [each for each in names if each != name]
