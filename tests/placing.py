"""Models whose layers are spread over several executors."""

from collections.abc import Sequence
from pathlib import Path

from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NUMPY_DEVICE, NumpyExecutor
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.placement import Placement


def placement(layers: int, devices: int) -> Placement:
    """As many layers on each device as on the others, the embedding table on the first one."""
    each = tuple(i * devices // layers for i in range(layers))
    return Placement(tuple(f"device {i}" for i in range(devices)), each, 0, devices - 1)


def spread_layers(children: Sequence[Executor], file: GGUFFile) -> PlacedExecutor:
    """An executor for a file's layers; the children stay open, so it is not closed."""
    tied = "output.weight" not in file.tensors
    layers = placement(file.config.uint("block_count"), len(children))
    executor = PlacedExecutor(children, layers, tied=tied)
    executor.unclosed.silence()
    return executor


def spread(children: Sequence[Executor], path: Path) -> PlacedExecutor:
    """The same for a path."""
    with open_gguf(path) as file:
        return spread_layers(children, file)


class TwoNumpyDevices(PlacedExecutor):
    """An executor of two devices for any model: its first layer is on one, the others on the other.

    It is described as the NumPy device, for tests that read that.
    """

    def __init__(self) -> None:
        super().__init__([NumpyExecutor(), NumpyExecutor()], placement(2, 2))
        self.info = NUMPY_DEVICE
        # A NumPy executor need not be closed.
        self.unclosed.silence()

    @property
    def _nbytes(self) -> dict[str, int]:
        one, other = (child._nbytes for child in self.children)
        return {name: one[name] + other[name] for name in one}
