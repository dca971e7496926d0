"""Pipelines from folders: ``wgpu_backend.images.load("folder").generate("a red circle")``."""

from __future__ import annotations

from pathlib import Path

from wgpu_backend.array import devices
from wgpu_backend.device_info import DeviceInfo
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.pipelines import find_pipelines
from wgpu_backend.images.pipelines.pipeline import Pipeline


def load(
    path: str | Path, *, device: str | DeviceInfo | None = None, variant: str | None = None
) -> Pipeline:
    """Open a folder with model_index.json.

    Parameters
    ----------
    path : path
    device : DeviceInfo, str or None
        Where its networks are; None is the default device of arrays.
    variant : str or None
        Of files such as ``model.fp16.safetensors``.

    Raises
    ------
    ModelError
        There is no such folder, its class is not known, or a file is damaged or does not fit.
    DeviceError
        There is no such device.
    """
    folder = PipelineFolder(path, variant)
    try:
        made = folder.choose(find_pipelines())
        with devices.preferring(devices.session(device)):
            return made(folder)
    except BaseException:
        folder.close()
        raise
