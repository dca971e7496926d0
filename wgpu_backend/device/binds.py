# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Dispatches checked against the device's limits, and their bind groups.

Without these checks, mistakes give validation errors that name nothing. An empty binding would end
the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import wgpu

from wgpu_backend.device.buffers import Binding, Buffer, Pool, Texture
from wgpu_backend.device.memory import format_bytes
from wgpu_backend.device.native import release_all
from wgpu_backend.device.pipelines import Pipeline
from wgpu_backend.device.queue import Copy, Queue
from wgpu_backend.device.wgsl.module import Access
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import Capabilities

Range = tuple[Buffer, int, int]


def round_up(nbytes: int, to: int = 4) -> int:
    """Round up to a multiple."""
    return -(-nbytes // to) * to


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One launch of a kernel.

    Parameters
    ----------
    bindings : tuple of Binding
        In the order of the shader's bindings.
    groups : tuple of int
        Work groups along x, y and z.
    label : str
        Name for timings and messages.
    work : int
        Estimate of bytes moved plus operations done; bounds what is submitted at once.
    """

    pipeline: Pipeline
    bindings: tuple[Binding, ...]
    groups: tuple[int, int, int]
    label: str = ""
    work: int = 0

    @property
    def name(self) -> str:
        """The label, or the shader's if it is empty."""
        return self.label or self.pipeline.label


def resolve_range(subject: str, binding: Binding, pool: Pool) -> Range:
    """Return buffer, offset and length of a binding that lies inside a live buffer.

    Raises
    ------
    DeviceError
        The buffer is released or another device's, or the range leaves it or is empty.
    """
    buffer, offset = binding.buffer, binding.offset
    if not buffer.belongs_to(pool):
        raise DeviceError(f"{subject}: {buffer} is of another device")
    if not buffer.alive:
        raise DeviceError(f"{subject}: {buffer} is used after its release")
    # 0 means up to the end.
    nbytes = binding.nbytes or buffer.nbytes - offset
    if offset < 0 or nbytes < 1 or offset + nbytes > buffer.nbytes:
        raise DeviceError(
            f"{subject}: bytes {offset} to {offset + nbytes} of {buffer}, "
            f"which holds {buffer.nbytes}"
        )
    return buffer, offset, nbytes


def check_copy(subject: str, binding: Binding, pool: Pool) -> Range:
    """Check a range that is copied; copies start at multiples of 4.

    Raises
    ------
    DeviceError
        The offset is not a multiple of 4, or the range is not in a live buffer of the device.
    """
    buffer, offset, nbytes = resolve_range(subject, binding, pool)
    if offset % 4:
        raise DeviceError(f"{subject}: offset {offset}, a multiple of 4 is needed")
    return buffer, offset, nbytes


def make_copy(source: Binding, target: Binding, pool: Pool, queue: Queue) -> Copy:
    """Return one copy between buffers, checked here because wgpu would end the process.

    Raises
    ------
    DeviceError
        A buffer is released, a range leaves one or is of another size, or both are one buffer.
    """
    buffer, offset, nbytes = check_copy("copy", source, pool)
    into, at, room = check_copy("copy", target, pool)
    # WebGPU copies whole words, and not within one buffer.
    if nbytes != room or nbytes % 4 or buffer is into:
        raise DeviceError(
            f"copy: {nbytes} bytes into {room}, needs as many, whole words, of another buffer"
        )
    return queue.copying(buffer.raw, offset, into.raw, at, nbytes)


def _resource(buffer: Buffer, offset: int, nbytes: int) -> object:
    if isinstance(buffer, Texture):
        return buffer.view
    return {"buffer": buffer.raw, "offset": offset, "size": nbytes}


class Binder:
    """A cache of bind groups, which checks dispatches before it makes one.

    Parameters
    ----------
    pool : Pool
        Where the buffers must come from.
    capabilities : Capabilities
        The limits to hold.
    """

    def __init__(self, queue: Queue, pool: Pool, capabilities: Capabilities) -> None:
        self.queue = queue
        self.pool = pool
        self._capabilities = capabilities
        self._groups: dict[tuple[object, ...], wgpu.GPUBindGroup] = {}

    def group(self, dispatch: Dispatch) -> wgpu.GPUBindGroup:
        """Return the bind group of a dispatch.

        Raises
        ------
        DeviceError
            A binding or the number of work groups does not suit the device.
        """
        self._check_pipeline(dispatch)
        self._check_groups(dispatch)
        ranges = self._ranges(dispatch)
        layout = dispatch.pipeline.layout
        key = (id(layout), *((id(buffer), offset, size) for buffer, offset, size in ranges))
        if key not in self._groups:
            self._groups[key] = self._create(dispatch, ranges)
        return self._groups[key]

    def close(self) -> None:
        """Drop every bind group."""
        release_all(self._groups.values())
        self._groups.clear()

    def _check_pipeline(self, dispatch: Dispatch) -> None:
        if dispatch.pipeline.owner is not self.queue:
            raise DeviceError(f"{dispatch.name}: its pipeline was compiled on another device")

    def _check_groups(self, dispatch: Dispatch) -> None:
        most = self._capabilities.max_groups
        if len(dispatch.groups) != 3 or not all(0 <= n <= most for n in dispatch.groups):
            raise DeviceError(
                f"{dispatch.name}: {dispatch.groups} work groups, each of three dimensions "
                f"takes 0 to {most}; groups=grid_for(count) in the Launch spreads them over x and "
                "y, and group_index(group_id, groups) of lib/index/grid counts them in the shader"
            )

    def _ranges(self, dispatch: Dispatch) -> list[Range]:
        declared = dispatch.pipeline.shader.bindings
        if len(dispatch.bindings) != len(declared):
            raise DeviceError(
                f"{dispatch.name}: {len(dispatch.bindings)} bindings, "
                f"{dispatch.pipeline.label} declares {len(declared)}"
            )
        ranges: list[Range] = []
        uses: dict[int, Access] = {}
        for decl, binding in zip(declared, dispatch.bindings, strict=True):
            subject = f"{dispatch.name}: {decl.name}"
            ranges.append(self._range(subject, binding, decl.access))
            # WebGPU allows no second use of a buffer that a dispatch writes.
            if uses.setdefault(id(binding.buffer), decl.access) != decl.access and "read_write" in (
                uses[id(binding.buffer)],
                decl.access,
            ):
                raise DeviceError(
                    f"{subject}: {binding.buffer} is bound {uses[id(binding.buffer)]} and "
                    f"{decl.access}, needs only one of these in a dispatch"
                )
        return ranges

    def _range(self, subject: str, binding: Binding, access: Access) -> Range:
        """Check one binding; its length is rounded up to whole words, a uniform's to 16 bytes."""
        buffer, offset, nbytes = resolve_range(subject, binding, self.pool)
        if isinstance(buffer, Texture) != (access == "texture"):
            raise DeviceError(f"{subject}: {buffer} is bound as {access}, needs the other kind")
        if access == "texture":
            return buffer, 0, buffer.capacity
        limits = self._capabilities
        uniform = access == "uniform"
        most = limits.max_uniform_nbytes if uniform else limits.max_binding_nbytes
        size = min(round_up(nbytes, 16 if uniform else 4), buffer.capacity - offset)
        if size > most:
            raise DeviceError(
                f"{subject}: {format_bytes(nbytes)} in one binding, the device allows "
                f"{format_bytes(most)}"
            )
        if offset % limits.binding_alignment:
            raise DeviceError(
                f"{subject}: offset {offset}, a multiple of {limits.binding_alignment} is needed"
            )
        return buffer, offset, size

    def _create(self, dispatch: Dispatch, ranges: Sequence[Range]) -> wgpu.GPUBindGroup:
        entries = [
            {"binding": decl.index, "resource": _resource(*found)}
            for decl, found in zip(dispatch.pipeline.shader.bindings, ranges, strict=True)
        ]
        with self.queue.translate_errors(dispatch.name):
            group = self.queue.gpu.create_bind_group(
                layout=dispatch.pipeline.layout, entries=entries
            )
        self.queue.counters.bind_groups += 1
        return group
