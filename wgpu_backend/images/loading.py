"""Opening of pipelines: ``wgpu_backend.images.load("folder").generate("a red circle")``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wgpu_backend.array import devices
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.images.bundled import PICTURES, find_folder
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.gguf_component import GgufComponent
from wgpu_backend.images.pipelines import find_pipelines
from wgpu_backend.images.pipelines.pipeline import Pipeline


def load(
    path: str | Path = PICTURES,
    *,
    device: str | DeviceInfo | None = None,
    variant: str | None = None,
    gguf: Mapping[str, str | Path] | None = None,
    exact: bool = False,
) -> Pipeline:
    """Open a folder with model_index.json.

    Parameters
    ----------
    path : path
        ``"pictures"`` for the bundled image model.
    device : DeviceInfo, str or None
        Device of its networks; None is the default device of arrays.
    variant : str or None
        Variant of files such as ``model.fp16.safetensors``.
    gguf : Mapping or None
        Files with the tensors of components, ``{"transformer": "flux1-dev-Q4_0.gguf"}``; the folder
        has their settings. Quantised weights stay quantised.
    exact : bool
        Whether activations stay in f32 even if rounding them to f16 would be faster.

    Raises
    ------
    ModelError
        There is no such folder, its class is unknown, or a file is damaged or does not fit.
    DeviceError
        There is no such device.
    """
    folder = PipelineFolder(find_folder(path), variant)
    try:
        made = folder.choose(find_pipelines())
        for name, file in (gguf or {}).items():
            folder.components[name] = GgufComponent(folder[name], file)
        with devices.preferring(devices.session(device)):
            return made(folder, exact=exact)
    except BaseException:
        folder.close()
        raise
