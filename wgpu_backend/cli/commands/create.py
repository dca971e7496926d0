"""`wgpu-backend create`: a GGUF file from a Hugging Face checkpoint, or a stored model."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated

import typer

from wgpu_backend.cli.commands.quantize import note_unweighted, require_matrix
from wgpu_backend.cli.console import note, print_text
from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.interrupts import Interrupts
from wgpu_backend.cli.names import BUNDLED, require_file, require_writable
from wgpu_backend.cli.options import Debug, ImportanceMatrix, Threads
from wgpu_backend.cli.progress import bar
from wgpu_backend.cli.store import open_store
from wgpu_backend.errors import OptionError


def create(
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="GGUF file to write, or a name for the store.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Folder with config.json, a tokenizer and safetensors."),
    ] = None,
    modelfile: Annotated[
        Path | None,
        typer.Option("-f", "--file", metavar="FILE", help="Modelfile of a model for the store."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--type",
            "-t",
            metavar="TYPE",
            help="Type as llama.cpp names it: Q4_K_M, Q8_0, BF16; default: the folder's.",
        ),
    ] = None,
    importance: ImportanceMatrix = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Create a GGUF file from a folder, or a model from a Modelfile."""
    if (folder is None) == (modelfile is None):
        raise UsageError("create: needs OUT and DIR, or a name and --file with a Modelfile")
    if folder is not None:
        print_text(f"{out}: {_write_file(Path(out), folder, dtype, importance, threads)}\n")
    if modelfile is not None:
        if dtype is not None or importance is not None:
            raise UsageError("create: --type and --imatrix are for DIR; `quantize` takes a file")
        _create_model(out, modelfile)


def _write_file(
    out: Path, folder: Path, type_name: str | None, importance: Path | None, threads: int | None
) -> str:
    """Write a GGUF file, with a progress bar on a terminal; return its size, type and time.

    Parameters
    ----------
    out : Path
        File to write.
    type_name : str or None
        Type or mix of the matrices; None for the checkpoint's.
    importance : Path or None
        Importance matrix.
    threads : int or None
        Number of threads; None for one per core.

    Raises
    ------
    UsageError
        The folder or type does not exist, or the file cannot be written.
    KeyboardInterrupt
        The user cancelled; no file is left.
    """
    from wgpu_backend.files.huggingface.create import create

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; DIR has config.json and safetensors")
    if type_name is not None:
        _require_known_type(type_name)
    if importance is not None:
        importance = require_matrix(importance)
    began = perf_counter()
    with Interrupts() as interrupts, bar(f"Writing {out.name}") as show_share:

        def progress(share: float) -> None:
            if interrupts.requested:
                # Raised from within the writer, which then removes its unfinished file.
                raise KeyboardInterrupt
            if show_share is not None:
                show_share(share)

        report = create(
            require_writable(out),
            folder,
            type_name,
            importance=importance,
            threads=threads,
            progress=progress,
        )
    note_unweighted(report, importance)
    size, seconds = out.stat().st_size, perf_counter() - began
    summary = f"{report.mix.name}, {report.bits_per_weight:.2f} bits per weight"
    tower = f"; tower in {report.tower.name}" if report.tower else ""
    return f"{size / 1e6:,.1f} MB, {summary}, in {seconds:.1f} s{tower}"


def _require_known_type(type_name: str) -> None:
    from wgpu_backend.files.quantize.mixes import MIXES, find_mix

    try:
        find_mix(type_name)
    except OptionError:
        known = ", ".join(mix.name for mix in MIXES)
        raise UsageError(f"--type: {brief(type_name)}, needs one of {known}") from None


def _create_model(name: str, modelfile: Path) -> None:
    """Make a stored model from a Modelfile.

    Raises
    ------
    UsageError
        The file cannot be read.
    """
    from wgpu_backend.engine.adapters import check_lora as fits
    from wgpu_backend.files.store.modelfile import parse_modelfile
    from wgpu_backend.files.store.names import ModelName
    from wgpu_backend.files.store.stored import create

    try:
        text = require_file(modelfile).read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"--file: {modelfile}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"--file: {modelfile}: not UTF-8") from None
    parsed_file = parse_modelfile(text)
    # The store has no model of this name; it comes with the package.
    if own := BUNDLED.get(str(parsed_file.base)):
        parsed_file.base = str(own)
    store, parsed = open_store(), ModelName.parse(name)
    folder = modelfile.parent / Path(str(parsed_file.base)).expanduser()
    if not (folder / "config.json").is_file():
        create(store, parsed, parsed_file, modelfile.parent, note, fits=fits)
        return
    # Before the conversion, which takes minutes.
    store.require_writable()
    store.root.mkdir(parents=True, exist_ok=True)
    # In the store's folder, since the large file then becomes a blob without a copy.
    with TemporaryDirectory(dir=store.root, prefix=".create-") as temporary:
        converted = Path(temporary, "model.gguf")
        note(f"{parsed_file.base}: {_write_file(converted, folder, None, None, None)}")
        parsed_file.base = str(converted)
        create(store, parsed, parsed_file, modelfile.parent, note, fits=fits)
