"""Detection of packed integer dot products in hardware, for which wgpu has no feature flag."""

from __future__ import annotations

import re

from wgpu_backend.graph.capabilities import DeviceInfo

# Names of GPUs that Vulkan drivers serve but that have no such instruction: AMD's GCN but for Vega
# 20, and RDNA 1; NVIDIA's Kepler and Maxwell; Intel's before generation 12.
_WITHOUT = re.compile(
    r"RADV (?:TAHITI|PITCAIRN|VERDE|OLAND|HAINAN|BONAIRE|KAVERI|KABINI|HAWAII|TONGA|ICELAND"
    r"|CARRIZO|FIJI|STONEY|POLARIS\d*|VEGAM|VEGA10|VEGA12|RAVEN\d?|RENOIR|NAVI10)\b"
    r"|Radeon.* (?:R[579]|HD|RX (?:Vega|[45]\d0|5[567]00)|Vega)\b"
    r"|GTX [789]\d\d|GT [67]\d\d|Quadro [KM]\d|Tesla [KM]\d"
    r"|(?<!U)HD Graphics|UHD Graphics P?6\d\d|Iris.* (?:Plus|Pro|6\d\d)"
)


def has_integer_dot(info: DeviceInfo) -> bool:
    """Return whether ``dot4I8Packed`` is one instruction of a device, as far as can be known.

    WGSL has it everywhere. wgpu hands it to Vulkan drivers as it is, which is one instruction on
    GPUs since about 2017 (NVIDIA's since Pascal, AMD's since RDNA 2, Intel's since generation 12);
    for older ones, known by their names here, drivers write it out as sixteen or more. On Metal,
    and on D3D12 with the compiler that wgpu takes by default, wgpu itself does. So the answer is
    yes for discrete and integrated devices through Vulkan of other names. What
    `wgpu-backend tune` measured outranks it, see `ops.rounding.is_faster`.
    """
    hardware = info.kind in ("discrete", "integrated") and info.api == "Vulkan"
    return hardware and _WITHOUT.search(info.name) is None
