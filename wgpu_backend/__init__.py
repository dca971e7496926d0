"""Run machine-learning models on any GPU: every tensor op a WGSL compute shader.

::

    import wgpu_backend

    with wgpu_backend.load("model.gguf") as model:
        for piece in model.generate("Why is the sky blue?", stream=True):
            print(piece, end="", flush=True)

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wgpu_backend.device.adapters import Devices
    from wgpu_backend.device_info import DeviceInfo
    from wgpu_backend.engine.language_model import LanguageModel
    from wgpu_backend.engine.loading import load
    from wgpu_backend.errors import (
        BackendError,
        CacheFull,
        ContextError,
        ContextFull,
        DeviceError,
        DeviceLost,
        DTypeError,
        GGUFError,
        ModelError,
        OutOfMemory,
        ShaderError,
        ShapeError,
        TemplateError,
        TokenizerError,
    )
    from wgpu_backend.gguf_file import open_gguf
    from wgpu_backend.ml.backend import Backend, BackendParams, new_backend, register_backend
    from wgpu_backend.ml.context import Context
    from wgpu_backend.ml.tensor import Tensor
    from wgpu_backend.model import Model, architecture
    from wgpu_backend.ops.op import op
    from wgpu_backend.sample import SamplingOptions

# In a checkout `shaders/` and `models/` stand beside the package; in a wheel they are inside it.
__path__ += [str(p) for p in (_Path(__file__).parent.parent,) if (p / "shaders").is_dir()]

__version__ = "0.1.0"

_HOMES = {
    "device.adapters": ("Devices",),
    "device_info": ("DeviceInfo",),
    "engine.language_model": ("LanguageModel",),
    "engine.loading": ("load",),
    "errors": (
        "BackendError", "CacheFull", "ContextError", "ContextFull", "DTypeError", "DeviceError",
        "DeviceLost", "GGUFError", "ModelError", "OutOfMemory", "ShaderError", "ShapeError",
        "TemplateError", "TokenizerError",
    ),
    "gguf_file": ("open_gguf",),
    "ml.backend": ("Backend", "BackendParams", "new_backend", "register_backend"),
    "ml.context": ("Context",),
    "ml.tensor": ("Tensor",),
    "model": ("Model", "architecture"),
    "ops.op": ("op",),
    "sample": ("SamplingOptions",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "Backend", "BackendError", "BackendParams", "CacheFull", "Context", "ContextError",
    "ContextFull", "DTypeError", "DeviceError", "DeviceInfo", "DeviceLost", "Devices", "GGUFError",
    "LanguageModel", "Model", "ModelError", "OutOfMemory", "SamplingOptions", "ShaderError",
    "ShapeError", "TemplateError", "Tensor", "TokenizerError", "architecture", "load",
    "new_backend", "op", "open_gguf", "register_backend",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
