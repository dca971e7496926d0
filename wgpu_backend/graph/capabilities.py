"""Plain data about a device, readable without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from wgpu_backend.graph.html_tables import binary_size, html_table

Kind = Literal["discrete", "integrated", "virtual", "software", "unknown", "cpu"]
Profile = Literal["full", "baseline"]

# Of textures that hold bytes, four words a texel. Every device takes as many rows of texels.
TEXEL_NBYTES, TEXEL_ROW_BITS, MAX_TEXEL_ROWS = 16, 10, 8192
ROW_TEXELS = 1 << TEXEL_ROW_BITS
TEXEL_ROW_NBYTES = ROW_TEXELS * TEXEL_NBYTES


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a product that one work group computes, where a kernel leaves that open.

    Parameters
    ----------
    rows : int
        Rows of the weight: of a lane on a software device, of a work group on hardware.
    columns : int
        Most columns of the other operand that are done at once.
    threads : int
        Threads of a work group.
    """

    rows: int
    columns: int
    threads: int


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """The shape of matrices of f16 that a subgroup multiplies at once, with sums in f32.

    Parameters
    ----------
    m, n, k : int
        Rows, columns, and values that are summed.
    subgroup : int
        Threads of a subgroup.
    dialect : str
        Compiler whose WGSL kernels use: ``dawn`` or ``naga``.
    """

    m: int
    n: int
    k: int
    subgroup: int
    dialect: Literal["dawn", "naga"] = "dawn"


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """Work group sizes, for kernels that leave them open, and the items that each thread takes.

    Parameters
    ----------
    threads : int
        Where threads are many, and do not wait for each other.
    few : int
        Where they do, or there are fewer of them than `many`.
    many : int
        Threads that give all cores work in groups of `threads`.
    items_per_thread : int
        Items that a thread takes of kernels that declare ``ITEMS_PER_THREAD``.
    """

    threads: int = 64
    few: int = 64
    many: int = 0
    items_per_thread: int = 1


# Read-only, since all capabilities without tuned tiles share it.
def _nothing() -> Mapping[str, Tile]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Everything known about a device: the basis for choosing kernels, weight layouts and fusion.

    It is put together before anything runs, from what the adapter reports, a probe, the self-test's
    verdict, what was tuned, and what kernel families know of devices of its kind.

    Parameters
    ----------
    software : bool
        The device is a rasteriser on the CPU: small work groups, no shared-memory tiles.
    subgroups : bool
        ``subgroupAdd`` and friends may be used.
    f16 : bool
        ``enable f16;`` may be used, and arithmetic in it pays.
    lanes : int
        Threads of a work group of eight that are one subgroup, on a software rasteriser with
        subgroups; 0 elsewhere.
    fused : bool
        ``fma`` rounds once, as hardware has it; rasterisers multiply, then add.
    int64 : bool
        Kernels may use ``i64`` and ``u64``.
    few_registers : bool
        A thread has some sixty registers: the larger tiles of products would spill.
    integer_dot : bool
        ``dot4I8Packed`` is one instruction, as far as can be known, see `device.integer_dot`.
    timestamps : bool
        The device has a clock that kernels can be timed by.
    max_binding_nbytes : int
        Largest range of a buffer that one binding may show.
    max_uniform_nbytes : int
        The same for a uniform binding.
    max_buffer_nbytes : int
        Largest buffer.
    max_storage_bindings : int
        Storage buffers one kernel may bind.
    max_workgroup_nbytes : int
        Workgroup memory of one work group.
    max_workgroup_invocations : int
        Threads in one work group.
    max_groups : int
        Work groups along one dimension of a dispatch.
    binding_alignment : int
        Alignment of a binding's offset, in bytes.
    tuned : mapping of str to Tile
        What was fastest on this device, see `ops.tiles`; empty if nothing was measured.
    rounded : frozenset of str
        Products that are known to be the faster for activations in eight bits, see `ops.rounding`.
    unrounded : frozenset of str
        Products that were measured not to be the faster for them.
    planar_groups : bool
        Products of few columns read activations in eight bits by planes, see `ops.q8_rounding`.
    gated_experts : bool
        A product with gates and projections of experts is the faster for having them together.
    compiles_tiles : bool
        Kernels with tiles in workgroup memory or registers compile in a second or so.
    compiles_long_kernels : bool
        Kernels with a thousand multiplications in a row compile in a second or so.
    expert_tiles : tuple of (int, int)
        Pairs of a tile of one expert, and how many an expert needs on average to make it pay; the
        largest tile first.
    matrix : MatrixUnit or None
        The unit that multiplies matrices of f16, if kernels may use one.
    """

    software: bool = False
    subgroups: bool = False
    lanes: int = 0
    f16: bool = False
    fused: bool = False
    int64: bool = False
    few_registers: bool = False
    integer_dot: bool = False
    timestamps: bool = False
    # These limits are the least that WebGPU promises.
    max_binding_nbytes: int = 128 << 20
    max_uniform_nbytes: int = 64 << 10
    max_buffer_nbytes: int = 256 << 20
    max_storage_bindings: int = 8
    max_workgroup_nbytes: int = 16384
    max_workgroup_invocations: int = 256
    max_groups: int = 65535
    binding_alignment: int = 256
    tuned: Mapping[str, Tile] = field(default_factory=_nothing, hash=False)
    rounded: frozenset[str] = frozenset()
    unrounded: frozenset[str] = frozenset()
    planar_groups: bool = True
    gated_experts: bool = True
    group_sizes: GroupSizes = GroupSizes()
    compiles_tiles: bool = True
    compiles_long_kernels: bool = True
    expert_tiles: tuple[tuple[int, int], ...] = ((32, 8),)
    matrix: MatrixUnit | None = None


HOST_FEATURE = "mappable-primary-buffers"
"""The feature by which kernels can bind buffers in the host's memory."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One adapter seen through one API, or the NumPy device.

    Parameters
    ----------
    id : str
        Stable short id: ``vulkan:0``, ``metal:0``, ``cpu``.
    name : str
        The adapter's own name.
    vendor : str
        Vendor in words where known.
    kind : str
        ``discrete``, ``integrated``, ``virtual``, ``software`` (a rasteriser), ``unknown``,
        or ``cpu`` (NumPy, no GPU API at all).
    api : str
        ``Vulkan``, ``Metal``, ``D3D12``, ``OpenGL`` or ``NumPy``.
    driver : str
        Driver name and version.
    pci_id : str
        PCI address or vendor:device pair where known, else empty.
    total_memory, free_memory : int or None
        Bytes, if the platform reports them: as they were when the device was listed.
    implementations : tuple of str
        WebGPU implementations that can open it: ``wgpu`` (wgpu-native), ``dawn``, or both.
    implementation : str
        The one that opened it; empty in a list of devices.
    matrix : MatrixUnit or None
        The matrix unit that ``dawn`` offers, if that is installed and the adapter has one. Of a
        device that wgpu-native opened, the unit that it granted.
    pci_slot : str
        PCI address of a card whose driver reports its memory, else empty.
    """

    id: str
    name: str
    vendor: str = ""
    kind: Kind = "unknown"
    api: str = ""
    driver: str = ""
    pci_id: str = ""
    total_memory: int | None = None
    free_memory: int | None = None
    limits: dict[str, int] = field(default_factory=dict[str, int], hash=False)
    features: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    implementation: str = ""
    matrix: MatrixUnit | None = None
    pci_slot: str = ""

    def __repr__(self) -> str:
        facts = [self.id, self.name, self.kind, self.api, self.driver]
        if self.total_memory is not None:
            facts.append(binary_size(self.total_memory))
        return f"DeviceInfo({', '.join(filter(None, facts))})"

    def _repr_html_(self) -> str:
        facts = {
            "id": self.id,
            "name": self.name,
            "vendor": self.vendor,
            "kind": self.kind,
            "API": self.api,
            "driver": self.driver,
            "PCI": self.pci_id,
            "memory": binary_size(self.total_memory),
            "free": binary_size(self.free_memory),
            "implementations": ", ".join(self.implementations),
            "features": ", ".join(self.features),
        }
        return html_table((name, value) for name, value in facts.items() if value not in ("", "–"))
