"""Plans of published models on imaginary machines, as the table of docs/devices.md.

    python -m tests.engine.machines --write

Weights are those of Q4_K_M at 4.85 bits, tables and heads at 6.56 bits; caches are f16.
Intermediates are what a pass of 256 tokens needs: four rows of the widest layer for each token.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from wgpu_backend.engine.placing import BUS_SPEED, SPEEDS
from wgpu_backend.errors import OutOfMemory
from wgpu_backend.ml.placement import (
    EMBEDDING,
    HOST,
    DeviceBudget,
    LayerNbytes,
    ModelNbytes,
    Placement,
    device_uses,
    step_seconds,
)
from wgpu_backend.ml.planner import plan_placement

PAGE = Path(__file__).parents[2] / "docs/devices.md"
BEGIN, END = "<!-- plans -->\n", "<!-- end of plans -->\n"
GB = 10**9
POSITIONS = 8192
LAYER_BITS, TABLE_BITS = 4.85, 6.56


@dataclass(frozen=True)
class Shape:
    """The published sizes of a model."""

    name: str
    layers: int
    width: int
    queries: int
    keys: int
    feed_forward: int
    vocabulary: int
    experts: int = 1
    used: int = 1

    def nbytes(self) -> ModelNbytes:
        attention = self.width * (2 * self.queries + 2 * self.keys)
        expert = 3 * self.width * self.feed_forward
        weights = attention + self.experts * expert
        read = attention + self.used * expert
        layer = LayerNbytes(
            int(weights * LAYER_BITS / 8),
            POSITIONS * 2 * self.keys * 2,
            int(read * LAYER_BITS / 8),
            4 * weights,
        )
        values = self.width * self.vocabulary
        table = LayerNbytes(int(values * TABLE_BITS / 8), host_weights=4 * values)
        widest = max(self.feed_forward * self.used, self.queries, self.width)
        compute = 256 * 4 * 4 * widest
        largest = attention if self.experts > 1 else 2 * self.width * self.feed_forward
        staging = 2 * int(largest * LAYER_BITS / 8)
        layers = (layer,) * self.layers
        return ModelNbytes(layers, table, table, LayerNbytes(), compute, 0, staging)


MODELS = (
    Shape("8B", 32, 4096, 4096, 1024, 14336, 128256),
    Shape("30B MoE", 48, 2048, 4096, 512, 768, 151936, 128, 8),
    Shape("70B", 80, 8192, 8192, 1024, 28672, 128256),
)


def gpu(number: int, free: float, kind: str = "discrete") -> DeviceBudget:
    return DeviceBudget(f"gpu:{number}", int(free * GB), SPEEDS[kind], bus=BUS_SPEED)


def shared(free: float) -> DeviceBudget:
    return DeviceBudget("gpu:0", int(free * GB), SPEEDS["integrated"], HOST)


def host(free: float) -> DeviceBudget:
    return DeviceBudget(HOST, int(free * GB), SPEEDS["cpu"])


# Bytes that are free when a model is loaded: the desktop takes some of each.
MACHINES: tuple[tuple[str, tuple[DeviceBudget, ...], DeviceBudget], ...] = (
    ("laptop, 8 GB unified", (shared(5.3),), host(6)),
    ("laptop, 16 GB unified", (shared(10.6),), host(13)),
    ("desktop, 6 GB card, 16 GB", (gpu(0, 5.5),), host(13)),
    ("desktop, 8 GB card, 32 GB", (gpu(0, 7.5),), host(28)),
    ("desktop, 12 GB card, 64 GB", (gpu(0, 11.5),), host(58)),
    ("desktop, 16 GB card, 64 GB", (gpu(0, 15.5),), host(58)),
    ("desktop, 24 GB card, 128 GB", (gpu(0, 23.5),), host(120)),
    (
        "desktop, 8 GB card + 16 GB unified",
        (gpu(0, 7.5), DeviceBudget("gpu:1", 10 * GB, SPEEDS["integrated"], HOST)),
        host(13),
    ),
    ("2 × 12 GB, 64 GB", (gpu(0, 11.5), gpu(1, 11.5)), host(58)),
    ("2 × 24 GB, 128 GB", (gpu(0, 23.5), gpu(1, 23.5)), host(120)),
    ("2 × 24 GB + 8 GB, 128 GB", (gpu(0, 23.5), gpu(1, 23.5), gpu(2, 7.5)), host(120)),
    ("workstation, 128 GB unified", (shared(96),), host(120)),
)


def cell(of: ModelNbytes, gpus: tuple[DeviceBudget, ...], cpu: DeviceBudget) -> str:
    """The plan of a model on a machine, short."""
    try:
        placement = plan_placement(of, gpus, host=cpu)
    except OutOfMemory:
        return "does not fit"
    uses = device_uses(of, placement, [*gpus, cpu])
    parts: list[str] = []
    for use in uses:
        name = use.id.replace("gpu:", "GPU ").replace(HOST, "CPU")
        if use.host_size:
            far = count(placement, use.id, on_host=True)
            parts.append(f"host for {name}: {far}, {use.host_size / GB:.1f} GB")
        parts.append(f"{name}: {count(placement, use.id)}, {use.size / GB:.1f} GB")
    rate = 1 / step_seconds(uses)
    return (
        f"{'; '.join(parts)}; {rate:.0f}/s" if rate >= 10 else f"{'; '.join(parts)}; {rate:.1f}/s"
    )


def count(placement: Placement, device: str, *, on_host: bool = False) -> str:
    """The layers of a device, with E for the embedding table and O for the output head.

    Those in its own memory, or in the host's.
    """
    at, far = placement.devices.index(device), placement.host
    layers = sum((layer in far) == on_host for layer in placement.layers_on(device))
    table = placement.embedding == at and (EMBEDDING in far) == on_host
    found = [*(["E"] if table else []), *([str(layers)] if layers else [])]
    return "+".join([*found, *(["O"] if placement.output == at and not on_host else [])])


def table() -> str:
    """The table, a row for each machine."""
    rows = [f"| machine | {' | '.join(shape.name for shape in MODELS)} |", "|---|" + "---|" * 3]
    for name, gpus, cpu in MACHINES:
        cells = [cell(shape.nbytes(), gpus, cpu) for shape in MODELS]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def write() -> None:
    """Put the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(head + BEGIN + table() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    write() if "--write" in sys.argv else print(table())  # noqa: T201
