"""Run machine-learning models on any GPU: every tensor op a WGSL compute shader.

::

    import wgpu_backend as wb

    with wb.load("model.gguf") as model:                # a language model
        for piece in model.generate("Why is the sky blue?", stream=True):
            print(piece, end="", flush=True)

    with wb.context() as ctx:                           # tensors, without a model
        x = ctx.from_numpy([[1.0, 2.0], [3.0, 4.0]])
        print((x @ x).softmax().numpy())

====================  ===============================================================
devices and models    Devices load LanguageModel SamplingOptions open_gguf create quantize
many requests         Engine Request Generation Event Result Grammar
tensors               context Context Tensor DType dtype f32 f16 i32 … (types by name)
backends              Backend BackendParams new_backend register_backend
ops of one's own      op Op Node Spec Launch grid_for ceil_div require_… testing
fusion rules          Graph OpNode
models of one's own   Model architecture nn weight Batch CacheLayer Config models
passes of a model     Runner Head Work BatchShape PagedCache
errors                BackendError and its kinds
====================  ===============================================================

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from importlib.machinery import ModuleSpec as _ModuleSpec
from os import path as _os_path
from sys import meta_path as _meta_path
from sys import modules as _modules
from types import ModuleType as _ModuleType
from warnings import warn as _warn

# Type checkers take it for true. The import of `typing` would take as long as all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from wgpu_backend import models, nn, testing
    from wgpu_backend.device.adapters import Devices
    from wgpu_backend.device.wgsl.module import forget as reload_shaders
    from wgpu_backend.dtypes import BF16 as bf16
    from wgpu_backend.dtypes import BOOL as bool_
    from wgpu_backend.dtypes import COMPLEX64 as complex64
    from wgpu_backend.dtypes import F16 as f16
    from wgpu_backend.dtypes import F32 as f32
    from wgpu_backend.dtypes import F64 as f64
    from wgpu_backend.dtypes import I8 as i8
    from wgpu_backend.dtypes import I16 as i16
    from wgpu_backend.dtypes import I32 as i32
    from wgpu_backend.dtypes import I64 as i64
    from wgpu_backend.dtypes import U8 as u8
    from wgpu_backend.dtypes import U16 as u16
    from wgpu_backend.dtypes import U32 as u32
    from wgpu_backend.dtypes import U64 as u64
    from wgpu_backend.dtypes import DType
    from wgpu_backend.dtypes import named as dtype
    from wgpu_backend.engine.batching.engine import Engine
    from wgpu_backend.engine.batching.generation import Generation
    from wgpu_backend.engine.batching.request import Request
    from wgpu_backend.engine.batching.results import Event, Result
    from wgpu_backend.engine.language_model import LanguageModel
    from wgpu_backend.engine.loading import load
    from wgpu_backend.engine.runner import Head, Runner
    from wgpu_backend.errors import (
        BackendError,
        CacheFull,
        ContextError,
        ContextFull,
        DeviceError,
        DeviceLost,
        DTypeError,
        GGUFError,
        GrammarError,
        MediaError,
        ModelError,
        ModelNotFound,
        NoDeviceLeft,
        OptionError,
        OutOfMemory,
        PluginError,
        QueueFull,
        ShaderError,
        ShapeError,
        StoreError,
        TemplateError,
        TokenizerError,
        WorkerLost,
    )
    from wgpu_backend.files.gguf.config import Config
    from wgpu_backend.files.gguf.reader import open_gguf
    from wgpu_backend.files.huggingface.create import create
    from wgpu_backend.files.quantize.files import quantize
    from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
    from wgpu_backend.graph.fusion import Graph
    from wgpu_backend.graph.fusion import OpNode as OpNode
    from wgpu_backend.graph.node import Launch, Node
    from wgpu_backend.graph.spec import Spec, broadcast_strides
    from wgpu_backend.graph.spec import broadcast as broadcast_shape
    from wgpu_backend.ml.backend import (
        Backend,
        BackendParams,
        LoadCancelled,
        new_backend,
        register_backend,
    )
    from wgpu_backend.ml.calibration.self_test import LeftOutWarning
    from wgpu_backend.ml.context import Context
    from wgpu_backend.ml.executor import Recorded
    from wgpu_backend.ml.opening import context
    from wgpu_backend.ml.tensor import Tensor
    from wgpu_backend.nn.batch import Batch, BatchShape, Work
    from wgpu_backend.nn.decoder import Decoder
    from wgpu_backend.nn.encoder import Encoder
    from wgpu_backend.nn.kvcache.layers import LayerShape as CacheLayer
    from wgpu_backend.nn.kvcache.layers import SharedLayer as CacheShared
    from wgpu_backend.nn.kvcache.layers import StateShape as CacheState
    from wgpu_backend.nn.kvcache.paged import PagedCache
    from wgpu_backend.nn.model import Model, architecture
    from wgpu_backend.nn.module import weight
    from wgpu_backend.ops.check import (
        FLOATS,
        ceil_div,
        grid_for,
        require,
        require_dtype,
        require_rank,
    )
    from wgpu_backend.ops.op import Op, op
    from wgpu_backend.ops.plugins import PluginWarning, import_file
    from wgpu_backend.ops.reference import Array
    from wgpu_backend.ops.sampling.host import SamplingOptions
    from wgpu_backend.text.grammar import Grammar

# In a checkout `shaders/` and `models/` stand next to the package; in a wheel they are inside it.
# Not by pathlib, whose import takes longer than all others here.
_above = _os_path.dirname(_os_path.dirname(_os_path.abspath(__file__)))  # noqa: PTH100, PTH120
__path__ += [_above] if _os_path.isdir(_os_path.join(_above, "shaders")) else []  # noqa: PTH112, PTH118

__version__ = "0.1.0"

# Public names by the module they live in; `name=inner` where that module calls it otherwise.
_HOMES = {
    "": "models nn testing",
    "device.adapters": "Devices",
    "device.wgsl.module": "reload_shaders=forget",
    "dtypes": (
        "DType dtype=named bf16=BF16 bool_=BOOL complex64=COMPLEX64 f16=F16 f32=F32 f64=F64 i8=I8 "
        "i16=I16 i32=I32 i64=I64 u8=U8 u16=U16 u32=U32 u64=U64"
    ),
    "engine.batching.engine": "Engine",
    "engine.batching.generation": "Generation",
    "engine.batching.request": "Request",
    "engine.batching.results": "Event Result",
    "engine.language_model": "LanguageModel",
    "engine.loading": "load",
    "engine.runner": "Head Runner",
    "errors": (
        "BackendError CacheFull ContextError ContextFull DTypeError DeviceError DeviceLost "
        "GGUFError GrammarError MediaError ModelError ModelNotFound NoDeviceLeft OptionError "
        "OutOfMemory PluginError QueueFull ShaderError ShapeError StoreError TemplateError "
        "TokenizerError WorkerLost"
    ),
    "files.gguf.config": "Config",
    "files.gguf.reader": "open_gguf",
    "files.huggingface.create": "create",
    "files.quantize.files": "quantize",
    "graph.capabilities": "Capabilities DeviceInfo",
    "graph.fusion": "Graph OpNode",
    "graph.node": "Launch Node",
    "graph.spec": "Spec broadcast_shape=broadcast broadcast_strides",
    "ml.backend": "Backend BackendParams LoadCancelled new_backend register_backend",
    "ml.calibration.self_test": "LeftOutWarning",
    "ml.context": "Context",
    "ml.executor": "Recorded",
    "ml.opening": "context",
    "ml.tensor": "Tensor",
    "nn.batch": "Batch BatchShape Work",
    "nn.decoder": "Decoder",
    "nn.encoder": "Encoder",
    "nn.kvcache.layers": "CacheLayer=LayerShape CacheShared=SharedLayer CacheState=StateShape",
    "nn.kvcache.paged": "PagedCache",
    "nn.model": "Model architecture",
    "nn.module": "weight",
    "ops.check": "FLOATS ceil_div grid_for require require_dtype require_rank",
    "ops.op": "Op op",
    "ops.plugins": "PluginWarning import_file",
    "ops.reference": "Array",
    "ops.sampling.host": "SamplingOptions",
    "text.grammar": "Grammar",
}
_HOME_OF = {
    entry.partition("=")[0]: (home, entry.rpartition("=")[2])
    for home, entries in _HOMES.items()
    for entry in entries.split()
}
__all__ = [
    "FLOATS", "Array", "Backend", "BackendError", "BackendParams", "Batch", "BatchShape",
    "CacheFull", "CacheLayer", "CacheShared", "CacheState", "Capabilities", "Config", "Context",
    "ContextError", "ContextFull",
    "DType", "DTypeError", "Decoder", "DeviceError", "DeviceInfo", "DeviceLost", "Devices",
    "Encoder", "Engine", "Event", "GGUFError", "Generation", "Grammar", "GrammarError", "Graph",
    "Head",
    "LanguageModel", "Launch", "LeftOutWarning",
    "LoadCancelled",
    "MediaError", "Model", "ModelError", "ModelNotFound", "NoDeviceLeft", "Node", "Op", "OpNode",
    "OptionError", "OutOfMemory",
    "PagedCache",
    "PluginError", "PluginWarning", "QueueFull", "Recorded", "Request", "Result", "Runner",
    "SamplingOptions", "ShaderError",
    "ShapeError", "Spec", "StoreError", "TemplateError", "Tensor", "TokenizerError", "Work",
    "WorkerLost",
    "architecture",
    "bf16", "bool_", "broadcast_shape", "broadcast_strides", "ceil_div", "complex64", "context",
    "create",
    "dtype", "f16", "f32", "f64", "grid_for", "i8", "i16", "i32", "i64", "import_file", "load",
    "models", "new_backend", "nn", "op", "open_gguf", "quantize", "register_backend",
    "reload_shaders", "require", "require_dtype", "require_rank", "testing", "u8", "u16", "u32",
    "u64", "weight",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, inner = _HOME_OF[name]
    if not home:
        return _import_module(f"{__name__}.{inner}")
    return getattr(_import_module(f"{__name__}.{home}"), inner)


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *__all__])


# Old module paths, which still work for one release.
_MOVED = {
    "batch": "nn.batch",
    "chat_template": "text.chat_template",
    "config": "files.gguf.config",
    "decoder": "nn.decoder",
    "device_info": "graph.capabilities",
    "encoder": "nn.encoder",
    "file_bytes": "files.gguf.file_bytes",
    "folders": "files.huggingface",
    "gguf_file": "files.gguf.reader",
    "gguf_header": "files.gguf.header",
    "gguf_writer": "files.gguf.writer",
    "given": "nn.model_inputs",
    "grammar": "text.grammar",
    "guarded": "ml.testing.red_zones",
    "interrupts": "device.interrupts",
    "kvcache": "nn.kvcache",
    "llama.vocabulary": "llama.model",
    "layouts": "ops.layouts",
    "ml.capabilities": "ml.calibration.probe",
    "ml.dry_run": "ml.wgpu.dry_run",
    "ml.self_test": "ml.calibration.self_test",
    "ml.tuning": "ml.calibration.tuning",
    "ml.wgpu_executor": "ml.wgpu.executor",
    "model": "nn.model",
    "model_store": "files.store",
    "ops.fourier": "ops.fft",
    "ops.quantised": "ops.mlx_quant",
    "ops.rope": "ops.attention",
    "ops.rounding": "ops.linear",
    "ops.rows": "ops.index",
    "output_parsers": "text.output_parsers",
    "plugins": "ops.plugins",
    "quantise": "files.quantize",
    "sample": "ops.sampling.host",
    "serving": "engine.batching",
    "shader": "device.wgsl.module",
    "stack": "nn.transformer",
    "tables": "graph.html_tables",
    "tokenizer": "text.tokenizer",
    "trial_operands": "ml.testing.operands",
    "trials": "ml.testing.cases",
    "wgsl_composer": "device.wgsl.composer",
    "wgsl_source": "graph.wgsl_source",
    "worker": "server.worker",
}


class _Moved:
    """An import hook that gives a moved module under its old name, with a DeprecationWarning."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> _ModuleSpec | None:
        """Return a spec for a module that moved, None for all others."""
        package, _, inner = name.partition(".")
        if package != __name__ or not inner:
            return None
        parts = inner.split(".")
        for n in range(len(parts), 0, -1):
            if new := _MOVED.get(".".join(parts[:n])):
                home = ".".join([__name__, new, *parts[n:]])
                return _ModuleSpec(name, _Moved(), loader_state=home)  # pyright: ignore[reportArgumentType] a loader by its methods
        return None

    @staticmethod
    def create_module(spec: _ModuleSpec) -> None:
        """Return None: importlib makes an empty module, which `exec_module` replaces."""

    @staticmethod
    def exec_module(module: _ModuleType) -> None:
        """Put the moved module in the place of the one that was asked for."""
        assert module.__spec__ is not None
        home = module.__spec__.loader_state
        text = f"{module.__name__} is now {home}; the old name goes with the next release"
        _warn(text, DeprecationWarning, stacklevel=2)
        _modules[module.__name__] = _import_module(home)


_meta_path.insert(0, _Moved())
