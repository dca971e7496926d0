"""`wgpu-backend create`: a GGUF file of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from wgpu_backend.cli.console import answer
from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.interrupts import Interrupts
from wgpu_backend.cli.names import writable
from wgpu_backend.cli.progress import bar
from wgpu_backend.folders.creating import create
from wgpu_backend.quantise import WRITABLE


def create_file(out: Path, folder: Path, type_name: str | None) -> None:
    """Write a file, with a bar where a person looks.

    Parameters
    ----------
    out : Path
        The file.
    folder : Path
    type_name : str or None
        Type of the matrices; None for the folder's.

    Raises
    ------
    UsageError
        There is no such folder or type, or the file cannot be written.
    KeyboardInterrupt
        The user called it off; nothing is left.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; DIR has config.json and safetensors")
    if type_name is not None and type_name.lower() not in WRITABLE:
        raise UsageError(f"--type: {brief(type_name)}, known are {', '.join(WRITABLE)}")
    began = perf_counter()
    with Interrupts() as interrupts, bar(f"Writing {out.name}") as shown:

        def progress(share: float) -> None:
            if interrupts.asked:
                raise KeyboardInterrupt
            if shown is not None:
                shown(share)

        create(writable(out), folder, type_name, progress=progress)
    size = out.stat().st_size
    answer(f"{out}: {size / 1e6:,.1f} MB in {perf_counter() - began:.1f} s\n")
