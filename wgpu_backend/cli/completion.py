"""What a shell offers when a user presses Tab: models and devices. Files are the shell's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from wgpu_backend.cli.names import STORY


def complete_model(incomplete: str) -> list[str]:
    """`story`, GGUF files, folders that lead to more, and names of the store.

    Parameters
    ----------
    incomplete : str
        What was typed so far.
    """
    return [*_begun(incomplete, STORY, _models), *complete_stored(incomplete)]


def complete_pipeline(incomplete: str) -> list[str]:
    """`pictures`, and folders: those of pipelines, and those that lead to more.

    Parameters
    ----------
    incomplete : str
        What was typed so far.
    """
    from wgpu_backend.images.bundled import PICTURES

    return _begun(incomplete, PICTURES, _pipelines)


def complete_stored(incomplete: str) -> list[str]:
    """Names of models of the store.

    Parameters
    ----------
    incomplete : str
        What was typed so far.
    """
    from wgpu_backend.cli.library import open_store

    names = [str(name).removesuffix(":latest") for name in open_store().names()]
    return [name for name in names if name.startswith(incomplete)]


def _begun(incomplete: str, own: str, among: Callable[[Path], Iterator[str]]) -> list[str]:
    """What begins as was typed: the bundled model's name, and names in the folder so far."""
    folder, _, beginning = incomplete.rpartition("/")
    start = f"{folder}/" if "/" in incomplete else ""
    found = [f"{start}{name}" for name in among(Path(start)) if name.startswith(beginning)]
    return [own, *found] if own.startswith(incomplete) else found


def _pipelines(folder: Path) -> Iterator[str]:
    """Folders of pipelines, and with a slash those that may lead to some."""
    for path in _listed(folder):
        if path.is_dir() and not path.name.startswith("."):
            yield path.name if (path / "model_index.json").exists() else f"{path.name}/"


def _models(folder: Path) -> Iterator[str]:
    """GGUF files of a folder; of one in it, its files where it has some, so that Tab goes on."""
    for path in _listed(folder):
        if path.is_dir() and not path.name.startswith("."):
            inside = [each.name for each in _listed(path) if each.suffix == ".gguf"]
            yield from (f"{path.name}/{name}" for name in inside or [""])
        elif path.suffix == ".gguf":
            yield path.name


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def complete_device(incomplete: str) -> list[tuple[str, str]]:
    """Ids and kinds of the devices of this machine, with their names.

    Parameters
    ----------
    incomplete : str
        What was typed so far.
    """
    from wgpu_backend.device.adapters import Devices

    devices = Devices()
    kinds = {info.kind: info.name for info in reversed(devices)}
    offers = {**{info.id: info.name for info in devices}, **kinds}
    return [(word, name) for word, name in offers.items() if word.startswith(incomplete)]
