"""The engine options of `serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from wgpu_backend.cli.failures import UsageError, brief


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of all models' engines."""

    slot_save_path: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where slots' contents may be saved.")
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", min=32, max=256, help="Tokens that one pass computes at most."),
    ] = None
    cache_ram: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=0,
            max=1 << 24,
            help="Memory for texts that devices have no room for.",
        ),
    ] = None
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Seeded answers are the same under any load; slower."),
    ] = False

    def settings(self) -> dict[str, Any]:
        """Return the server's settings from these options.

        Raises
        ------
        UsageError
            The folder does not exist.
        """
        return {"slot_folder": _folder(self.slot_save_path)}

    def engine(self) -> dict[str, Any]:
        """Return the arguments of engines that were given."""
        given = {
            "batch_tokens": self.batch_size,
            "host_cache": None if self.cache_ram is None else self.cache_ram << 20,
            "deterministic": self.deterministic or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def drafts(draft: str | None, tokens: int | None) -> dict[str, Any]:
    """Return the arguments of engines for speculative decoding.

    Parameters
    ----------
    draft : str or None
        ``ngram``, or the draft model.
    tokens : int or None
        Draft tokens at once.

    Raises
    ------
    UsageError
        The draft model does not exist, or `tokens` is given without a draft.
    """
    from wgpu_backend.cli.names import model_path

    if draft is None:
        if tokens is not None:
            raise UsageError("--draft-tokens: requires --draft ngram or a model")
        return {}
    found = draft if draft == "ngram" else str(model_path(draft).absolute())
    return {"draft": found} | ({} if tokens is None else {"draft_tokens": tokens})


def _folder(path: Path | None) -> Path | None:
    from wgpu_backend.cli.names import exists

    if path is None:
        return None
    if not exists(str(path)) or not path.is_dir():
        raise UsageError(f"--slot-save-path: {brief(str(path))}: no such folder")
    return path.absolute()
