"""Shell completion of models and devices; the shell itself completes files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from wgpu_backend.cli.names import BUNDLED


def complete_model(incomplete: str) -> list[str]:
    """Complete bundled models, GGUF files, folders that contain more, and names in the store.

    Parameters
    ----------
    incomplete : str
        Input so far.
    """
    return [*_complete_path(incomplete, BUNDLED, _list_models), *complete_stored(incomplete)]


def complete_pipeline(incomplete: str) -> list[str]:
    """Complete the bundled image model's name, or the path of a pipeline's folder.

    Parameters
    ----------
    incomplete : str
        Input so far.
    """
    from wgpu_backend.images.bundled import PICTURES

    return _complete_path(incomplete, (PICTURES,), _list_pipelines)


def complete_stored(incomplete: str) -> list[str]:
    """Complete names of models in the store.

    Parameters
    ----------
    incomplete : str
        Input so far.
    """
    from wgpu_backend.cli.store import open_store

    # Users leave the default tag out.
    names = [str(name).removesuffix(":latest") for name in open_store().names()]
    return [name for name in names if name.startswith(incomplete)]


def _complete_path(
    incomplete: str, own: Iterable[str], among: Callable[[Path], Iterator[str]]
) -> list[str]:
    """Return completions among bundled models' names and the names in the typed folder."""
    folder, _, beginning = incomplete.rpartition("/")
    start = f"{folder}/" if "/" in incomplete else ""
    found = [f"{start}{name}" for name in among(Path(start)) if name.startswith(beginning)]
    return [*(name for name in own if name.startswith(incomplete)), *found]


def _list_pipelines(folder: Path) -> Iterator[str]:
    """Yield names of subfolders; those that are not pipelines end with a slash."""
    for path in _list_folder(folder):
        if path.is_dir() and not path.name.startswith("."):
            yield path.name if (path / "model_index.json").exists() else f"{path.name}/"


def _list_models(folder: Path) -> Iterator[str]:
    """Yield GGUF files of a folder and its subfolders; subfolders without any end with a slash."""
    for path in _list_folder(folder):
        if path.is_dir() and not path.name.startswith("."):
            # Two levels: models often lie in a folder each.
            inside = [each.name for each in _list_folder(path) if each.suffix == ".gguf"]
            yield from (f"{path.name}/{name}" for name in inside or [""])
        elif path.suffix == ".gguf":
            yield path.name


def _list_folder(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    # An error would print a traceback into the shell's line.
    except OSError:
        return []


def complete_device(incomplete: str) -> list[tuple[str, str]]:
    """Complete ids and kinds of this machine's devices, with their names.

    Parameters
    ----------
    incomplete : str
        Input so far.
    """
    from wgpu_backend.device.adapters import Devices

    devices = Devices()
    # In reverse, so that the best device of each kind stays in the dictionary.
    kinds = {info.kind: info.name for info in reversed(devices)}
    offers = {**{info.id: info.name for info in devices}, **kinds}
    return [(word, name) for word, name in offers.items() if word.startswith(incomplete)]
