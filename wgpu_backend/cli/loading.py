"""Loading of a model on a device, with a progress bar."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wgpu_backend.cli.console import is_terminal, log_as_notes, note
from wgpu_backend.cli.drivers import suggest_driver
from wgpu_backend.cli.failures import UsageError, one_line
from wgpu_backend.cli.interrupts import Interrupts
from wgpu_backend.cli.options import DEVICE_VARIABLE, ModelSettings
from wgpu_backend.cli.progress import bar
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import load
from wgpu_backend.errors import DeviceError, DeviceLost, OutOfMemory
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.backend import LoadCancelled
from wgpu_backend.ml.opening import choose_device

NUMPY = "cpu"


def open_model(
    path: Path, settings: ModelSettings, *, self_test: bool = True, label: str = ""
) -> LanguageModel:
    """Load a model, with a progress bar on a terminal.

    Parameters
    ----------
    self_test : bool
        Test a device on its first use; not needed if nothing is computed with it.
    label : str
        Name for the progress bar; the file's name if empty.

    Raises
    ------
    UsageError
        The device does not exist.
    KeyboardInterrupt
        The user cancelled.
    """
    log_as_notes()
    if settings.devices or settings.placement is not None:
        return _load(path, None, settings, self_test=self_test, label=label)
    info = find_device(settings)
    try:
        return _load(path, info, settings, self_test=self_test, label=label)
    # A lost device is a fault to report, and a model too large for the device is too slow on the
    # CPU.
    except (DeviceLost, OutOfMemory):
        raise
    except DeviceError as error:
        # A device that the user named is not replaced.
        if settings.device or info.kind == "cpu":
            raise
        note(f"{one_line(str(error))}; using the CPU with NumPy, which is slow")
        return _load(path, choose_device(NUMPY)[1], settings, self_test=self_test, label=label)


def find_devices(settings: ModelSettings) -> list[DeviceInfo]:
    """Return the devices for layers: those named, or all GPUs.

    Raises
    ------
    UsageError
        A device does not exist, or is named twice.
    """
    from wgpu_backend.engine import placing

    names = settings.devices or (() if settings.device is None else (settings.device,))
    try:
        return placing.find_devices(names or None)
    except DeviceError as error:
        raise UsageError(str(error)) from None


def _load(
    path: Path, info: DeviceInfo | None, settings: ModelSettings, *, self_test: bool, label: str
) -> LanguageModel:
    """Load a model on one device, or on several if none is named."""
    with Interrupts() as interrupts, bar(f"Loading {label or path.name}") as progress:
        try:
            return load(
                path,
                device=info,
                devices=None if info is not None else find_devices(settings),
                placement=settings.placement,
                profile=settings.profile,
                num_ctx=settings.num_ctx,
                kv_dtype=settings.kv,
                exact=settings.exact,
                coarse=settings.coarse,
                progress=progress,
                cancelled=lambda: interrupts.requested,
                self_test=self_test,
                adapters=settings.adapters.loras,
                control_vectors=settings.adapters.control_vectors,
                control_layers=settings.adapters.control_layers,
                mmproj=settings.mmproj,
                warmup=settings.warmup,
            )
        # `main` reports Ctrl-C once for all commands.
        except LoadCancelled:
            raise KeyboardInterrupt from None


def find_device(settings: ModelSettings) -> DeviceInfo:
    """Return the named device, or the best; print a note if that is not a GPU."""
    if settings.device is not None:
        return find_device_by_name(settings.device)
    info = choose_device(None)[1]
    if info.kind == "cpu":
        note(f"no GPU adapter, using the CPU with NumPy, which is slow; {suggest_driver()}")
    # Scripts that run on a rasteriser on purpose, such as tests, get no note.
    elif info.kind == "software" and (settings.verbose or is_terminal(sys.stderr)):
        note(f"no GPU, using the software rasteriser {info.id} {info.name}")
    return info


def find_device_by_name(name: str) -> DeviceInfo:
    """Return the device that a user named.

    Raises
    ------
    UsageError
        The device does not exist.
    """
    try:
        return choose_device(name)[1]
    except DeviceError as error:
        # Typer does not say whether an option's value came from the environment.
        from_variable = os.environ.get(DEVICE_VARIABLE) == name
        raise UsageError(f"{DEVICE_VARIABLE}: {error}" if from_variable else str(error)) from None


def find_gpu(name: str | None) -> DeviceInfo | None:
    """Return a named device that is not NumPy; None if no name is given.

    Raises
    ------
    UsageError
        The device does not exist, or is NumPy.
    """
    info = None if name is None else find_device_by_name(name)
    if info is not None and info.kind == "cpu":
        raise UsageError(f"--device: {name!r} is NumPy, needs a GPU or a software rasteriser")
    return info
