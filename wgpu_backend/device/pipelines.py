# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Pipelines compiled from shaders; compile errors point at the file the line came from."""

from __future__ import annotations

import re
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field

import wgpu

from wgpu_backend.device.buffers import TEXTURE_FORMAT
from wgpu_backend.device.faults import cause, is_gpu_error, is_loss
from wgpu_backend.device.interrupts import uninterrupted, wait_until
from wgpu_backend.device.native import enable, release_all
from wgpu_backend.device.queue import Queue
from wgpu_backend.device.wgsl.limits import check_bounds
from wgpu_backend.device.wgsl.messages import Place, explain
from wgpu_backend.device.wgsl.module import Access, Shader
from wgpu_backend.device.wgsl.switches import split_switches
from wgpu_backend.errors import DeviceError, ShaderError
from wgpu_backend.graph.capabilities import Capabilities

_PLACE = re.compile(r"┌─ [^\n]*?:(?P<line>\d+):(?P<column>\d+)")
_HEADLINE = re.compile(r"(?:parsing|validation) error: (?P<text>.*)")
# Tint, Dawn's compiler, gives a place and a text on one line.
_TINT = re.compile(r"(?:^|\s):(?P<line>\d+):(?P<column>\d+) error: (?P<text>.*)$", re.MULTILINE)
# A function that is shown as a block, and in it the line whose expression is underlined.
_INSIDE = re.compile(r"^ *(?P<line>\d+) │ [╭│] [^\n]*\n *│ │ (?P<before> *)\^+", re.MULTILINE)
# Origins in files of the package begin so.
PACKAGE = "shaders/"
_DETAIL = re.compile(r"^\s*= (?P<text>.*)$", re.MULTILINE)
_LAYOUTS: dict[Access, dict[str, dict[str, str]]] = {
    "read": {"buffer": {"type": "read-only-storage"}},
    "read_write": {"buffer": {"type": "storage"}},
    "uniform": {"buffer": {"type": "uniform"}},
    "texture": {"storage_texture": {"access": "read-only", "format": TEXTURE_FORMAT}},
}


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A compiled shader of one device.

    Parameters
    ----------
    shader : Shader
        What it was compiled from; its bindings are the order of ``Dispatch.bindings``.
    """

    shader: Shader
    raw: wgpu.GPUComputePipeline = field(repr=False)
    layout: wgpu.GPUBindGroupLayout = field(repr=False)
    owner: Queue = field(repr=False)

    @property
    def label(self) -> str:
        """The shader's name for messages."""
        return self.shader.label


def point_to_source(error: BaseException, shader: Shader) -> ShaderError:
    """Point a compile error at the file and line from which the shader was composed.

    Returns
    -------
    ShaderError
        ``label: file:line: what``, the line itself, and a caret under the place.
    """
    text = str(error)
    tint = _TINT.search(text)
    place = tint or _PLACE.search(text)
    headline = tint or _HEADLINE.search(text)
    details = _DETAIL.findall(text)
    what = "; ".join([headline["text"].strip() if headline else cause(error), *details])
    number = int(place["line"]) if place else 0
    lines = shader.text.splitlines()
    if place is None or not 0 < number <= len(lines):
        return ShaderError(f"{shader.label}: {explain(what, Place('', shader.text))}")
    column = int(place["column"])
    # Where the compiler names the function, the expression is more precise.
    if inner := _INSIDE.search(text):
        number, column = int(inner["line"]), len(inner["before"]) + 1
    return _point_to_caller(
        shader, number, column, explain(what, Place(lines[number - 1], shader.text))
    )


def _point_to_caller(shader: Shader, line: int, column: int, what: str) -> ShaderError:
    """Return an error at a place; for a file of ``lib/``, at the caller's first function."""
    origin = shader.origins[line - 1] if line <= len(shader.origins) else ""
    lines = shader.text.splitlines()
    outside = any(not o.startswith(PACKAGE) for o in shader.origins)
    if not origin.startswith(f"{PACKAGE}lib/"):
        return shader.make_error(line, column, what)
    used = f"{what}; {origin} has `{lines[line - 1].strip()}`, whose file says at its top what the "
    used += "file that imports it defines"
    for number, text in enumerate(lines, 1):
        mine = outside and not shader.origins[number - 1].startswith(PACKAGE)
        if mine and (found := re.search(r"\bfn (\w+)", text)):
            return shader.make_error(number, found.start(1) + 1, used)
    return shader.make_error(line, column, used)


class Pipelines:
    """The pipelines of one device, each compiled once.

    Parameters
    ----------
    capabilities : Capabilities
        What shaders are checked against beforehand.
    """

    def __init__(self, queue: Queue, capabilities: Capabilities) -> None:
        self._queue = queue
        self._capabilities = capabilities
        self._cache: dict[tuple[object, ...], Pipeline] = {}
        self._under_way: dict[tuple[object, ...], threading.Event] = {}
        self._layouts: dict[tuple[tuple[int, Access], ...], wgpu.GPUBindGroupLayout] = {}
        self._settled = False

    @uninterrupted
    def get(self, shader: Shader) -> Pipeline:
        """Return the pipeline of a shader, compiling it the first time.

        Other threads may use the device meanwhile; one that needs the same shader waits.

        Raises
        ------
        ShaderError
            The WGSL does not compile, differs from its declared bindings, or is beyond what the
            compiler survives.
        """
        # Not the shader itself: its label and origins do not change the compiled code.
        key = (shader.text, shader.entry, shader.bindings, shader.trusted)
        while True:
            with self._queue.enter(shader.label):
                pipeline = self._cache.get(key)
                if pipeline is not None:
                    return pipeline
                if self._settled:
                    raise DeviceError(f"{shader.label}: the device is closing")
                busy = self._under_way.get(key)
                if busy is None:
                    done = self._under_way[key] = threading.Event()
                    break
            # Outside the lock: the thread that compiles needs it to finish.
            wait_until(busy.wait)
        try:
            return self._add(key, shader)
        finally:
            with self._queue.lock:
                del self._under_way[key]
            done.set()

    def _add(self, key: tuple[object, ...], shader: Shader) -> Pipeline:
        check_bounds(shader, self._capabilities)
        with self._queue.translate_errors(shader.label):
            pipeline = self._compile(shader)
        with self._queue.lock:
            self._cache[key] = pipeline
            self._queue.counters.pipelines += 1
        return pipeline

    @uninterrupted
    def settle(self) -> None:
        """Wait for compilation in progress and refuse more; do not hold the queue's lock."""
        with self._queue.lock:
            self._settled = True
            under_way = list(self._under_way.values())
        for done in under_way:
            done.wait()

    def close(self) -> None:
        """Drop every pipeline."""
        release_all(pipeline.raw for pipeline in self._cache.values())
        release_all(self._layouts.values())
        self._cache.clear()
        self._layouts.clear()

    def _compile(self, shader: Shader) -> Pipeline:
        with self._queue.lock:
            layout = self._layout(shader)
        gpu, native = self._queue.gpu, self._queue.native
        try:
            whole = gpu.create_pipeline_layout(bind_group_layouts=[layout])
            module = self._module(shader)
            if native is not None:
                raw = native.pipeline(gpu, shader.label, whole, module, shader.entry)
            else:
                stage = {"module": module, "entry_point": shader.entry}
                raw = gpu.create_compute_pipeline(label=shader.label, layout=whole, compute=stage)
        except Exception as error:
            refused = is_gpu_error(error) or isinstance(error, RuntimeError)
            if not refused or is_gpu_error(error, "GPUOutOfMemoryError") or is_loss(error):
                raise
            raise point_to_source(error, shader) from error
        return Pipeline(shader, raw, layout, self._queue)

    def _module(self, shader: Shader) -> wgpu.GPUShaderModule:
        native, gpu = self._queue.native, self._queue.gpu
        if shader.trusted and native is not None:
            with self._queue.lock if native.errors_are_shared else nullcontext():
                return native.trusted_module(gpu, shader.label, shader.text)
        # llvmpipe compiles at most 80 branches of a switch.
        text = split_switches(shader.text) if self._capabilities.software else shader.text
        if native is None:
            return gpu.create_shader_module(label=shader.label, code=enable(text))
        with self._queue.lock if native.errors_are_shared else nullcontext():
            return native.module(gpu, shader.label, text)

    def _layout(self, shader: Shader) -> wgpu.GPUBindGroupLayout:
        """Return the bind-group layout, one for all shaders with equal bindings.

        Read-only storage is declared as such: wgpu puts a barrier after every dispatch that might
        have written a buffer.
        """
        key: tuple[tuple[int, Access], ...] = tuple((b.index, b.access) for b in shader.bindings)
        if key not in self._layouts:
            entries = [
                {
                    "binding": index,
                    "visibility": wgpu.ShaderStage.COMPUTE,
                    **_LAYOUTS[access],
                }
                for index, access in key
            ]
            self._layouts[key] = self._queue.gpu.create_bind_group_layout(entries=entries)
        return self._layouts[key]
