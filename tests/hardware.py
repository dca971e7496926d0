"""What hardware gets: the kernels of whole models, for devices that are not here.

Graphs of decode steps and of prompts are recorded for a model without weights by an executor that
is given another device's capabilities, and their shaders composed.
"""

import dataclasses
from itertools import product

from benchmarks.gpu_costs import internals
from benchmarks.gpu_costs.models import Sizes, sparse_gguf
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.kernels import complete
from wgpu_backend.ml.backend import BackendParams, new_backend

# A layer of an 8B model, whose tiles, splits and work groups are those of a model in use.
LAYER = Sizes(1, 4096, 32, 8, 128, 14336, 2048)
SMALL = Sizes(1, 896, 14, 2, 64, 4864, 2048)
POSITIONS = 4096  # of a sequence in a decode step
NARROW = [("q4_0", SMALL, False), ("f16", SMALL, True)]  # format, sizes, whether all is in f32
GRAPHS = ("decode1", "decode8", "prefill16", "prefill256")
FORMATS = ("f32", "f16", "q4_0", "q5_1", "q8_0", "q4_k", "q6_k")
LIMITS = {"max_storage_bindings": 16, "max_workgroup_invocations": 1024, "int64": False}
# By the size of a subgroup: 32 as on GPUs of NVIDIA, Apple and, since RDNA, AMD; 64 on AMD's older.
DEVICES = {
    32: {"f16": True, "integer_dot": True, "max_workgroup_nbytes": 48 << 10},
    64: {"f16": True, "integer_dot": False, "max_workgroup_nbytes": 64 << 10},
}
# Fields of capabilities that may say how large a subgroup is; kernels that ask for it while they
# run have one text for all sizes.
SIZE_FIELDS = {"subgroup_size", "min_subgroup_size", "max_subgroup_size"}


def capabilities(known, size):
    """Capabilities of hardware with subgroups of `size`, all else as the device here has it."""
    sizes = dict.fromkeys(SIZE_FIELDS & {f.name for f in dataclasses.fields(Capabilities)}, size)
    told = {"software": False, "subgroups": True, "fused": True, "lanes": 0}
    return dataclasses.replace(known, **told, **LIMITS, **DEVICES[size], **sizes)


def every_shader(info, folder):
    """Shaders that devices with subgroups of each size get for models of each format.

    Parameters
    ----------
    info : DeviceInfo
        Any device that opens; nothing runs there.
    folder : Path
        For the models' headers.
    """
    found = {s.text: s for size in DEVICES for s in shaders(info, size, folder)}
    assert any("subgroup" in text for text in found)
    return list(found.values())


def shaders(info, size, folder):
    """Those of one size."""
    found = {}
    for format, sizes, exact in [*product(FORMATS, (LAYER,), (False, True)), *NARROW]:
        path = sparse_gguf(folder / "model.gguf", sizes, format)
        params = BackendParams(info, exact=exact, coarse=not exact, self_test=False)
        with new_backend(path, params) as backend:
            found.update((s.text, s) for s in _shaders(backend, size))
    return list(found.values())


def _shaders(backend, size):
    executor = backend.executor
    known = complete(capabilities(executor.device.capabilities, size))
    backend.executor = executor.as_if(known)
    shapes = {name: internals.shape_of(name, POSITIONS) for name in GRAPHS}
    for _, made in internals.dispatches(backend, shapes, "f16"):
        yield from (each.shader for each in made)
