"""Static costs of the kernels for matrix units, by AMD's compiler without a GPU.

::

    python -m benchmarks.gpu_costs.units [FAMILY …]

No implementation of WebGPU opens the null device with units: wgpu-native does not grant them, and
Dawn ends the process. So naga's program of the tests (``.ci/naga.py build/naga``) translates the
kernels to SPIR-V, and a process compiles that through Vulkan. Figures are of the loop that
multiplies most, as `peer` has them of llama.cpp. Attention has two: "no growth" leaves out what a
turn does only if scores grow by far, which most turns do not.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_costs import peer, tools

NAGA = tools.ROOT / "build" / "naga" / "naga"
FAMILIES = ("navi31", "gfx1201")
UNIT = 16, 16, 16, 32  # of RDNA 3 and 4, and as naga has them
NBYTES = 48 << 10  # of workgroup memory
SEPARATOR = "\0"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with units.

    Parameters
    ----------
    name, text : str
    bindings : list of (int, bool)
        Number of each binding, and whether it is a uniform buffer.
    threads : int
        Of a work group.
    pairs : int
        Pairs of a query and a key in a turn of an attention's loop; 0 for products.
    """

    name: str
    text: str
    bindings: list[tuple[int, bool]]
    threads: int
    pairs: int = 0


def kernels() -> Iterator[Kernel]:
    """List the kernels, of the largest tiles."""
    from wgpu_backend.dtypes import F16, Q4_0, Q4_K, Q6_K, Q8_0
    from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
    from wgpu_backend.kernels.gpu import matrix
    from wgpu_backend.kernels.gpu.attention_matrix import PLAIN, SHADER, pick_size
    from wgpu_backend.kernels.gpu.conv_matrix import conv_choices

    unit = MatrixUnit(*UNIT, "naga")
    device = Capabilities(
        f16=True, matrix=unit, max_workgroup_nbytes=NBYTES, max_workgroup_invocations=1024
    )
    blocks = matrix.BLOCKS[0]
    for dtype in (Q4_0, Q8_0, Q4_K, Q6_K, F16):
        choices = matrix.product_choices(blocks, unit, dtype, 1)
        yield _kernel(f"product {dtype}", matrix.SHADER, choices, blocks.tile(unit).threads)
    for pairs, _ in matrix.EXPERT_WIDTHS:
        of_experts = matrix.expert_blocks(pairs, device)
        assert of_experts is not None
        for dtype in (Q4_0, Q4_K, Q6_K):
            choices = matrix.expert_choices(of_experts, unit, dtype)
            threads = of_experts.tile(unit).threads
            yield _kernel(f"experts {dtype}, {pairs} pairs", matrix.BY_EXPERT, choices, threads)
    choices = conv_choices(blocks, unit, F16)
    yield _kernel("convolution f16", "kernels/gpu/conv_matrix", choices, blocks.tile(unit).threads)
    plain = {
        "source": "lib/attention/plain_rows",
        **PLAIN,
        **dict.fromkeys("kv", "formats/vec4/f16"),
    }
    paged = dict.fromkeys("kv", "kernels/gpu/lib/cache_f16")
    wanted = [("paged", 128, paged), ("paged", 160, paged)]
    wanted += [("plain", n, plain) for n in (40, 64, 80, 128, 160)]
    for name, cols, how in wanted:
        tile = pick_size(cols // 4, cols // 4, device)
        assert tile is not None
        for grows in (True, False):
            yield _kernel(
                f"attention {name}, {cols} columns{'' if grows else ', no growth'}",
                SHADER,
                {**tile.choices(), **how, "GROWS": grows},
                tile.threads,
                tile.rows * tile.keys,
            )


def _kernel(name: str, path: str, choices: Mapping[str, Any], *sizes: int) -> Kernel:
    from wgpu_backend.device.native import enable
    from wgpu_backend.device.wgsl.module import load

    shader = load(path, choices, trusted=True)
    bindings = [(each.index, each.access == "uniform") for each in shader.bindings]
    return Kernel(name, enable(shader.text), bindings, *sizes)


def translated(found: list[Kernel], folder: Path) -> None:
    """Write the SPIR-V of each kernel to a numbered file.

    Raises
    ------
    tools.Missing
        The translator is not built, or it refuses a kernel.
    """
    if not NAGA.exists():
        raise tools.Missing(f"no {NAGA}: `.ci/naga.py build/naga`")
    given = SEPARATOR.join(each.text for each in found)
    done = subprocess.run([NAGA, folder], input=given, capture_output=True, text=True, check=True)
    for each, fault in zip(found, done.stdout.split(SEPARATOR), strict=True):
        if fault:
            raise tools.Missing(f"{each.name}: {fault}")


# Vulkan's structures, as arrays of words of eight bytes where that is how they lie.
INSTANCE_INFO, APPLICATION_INFO, DEVICE_INFO, QUEUE_INFO = 1, 0, 3, 2
MODULE_INFO, STAGE_INFO, COMPUTE_INFO, LAYOUT_INFO, SET_LAYOUT_INFO = 16, 18, 29, 30, 32
SUBGROUP_SIZE_INFO, FULL_SUBGROUPS = 1000225001, 2
UNIFORM, STORAGE, COMPUTE = 6, 7, 0x20
VULKAN_1_3 = (1 << 22) | (3 << 12)
Word = ctypes.c_uint64


class SetBinding(ctypes.Structure):
    """VkDescriptorSetLayoutBinding."""

    _fields_ = (
        ("binding", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("stages", ctypes.c_uint32),
        ("samplers", ctypes.c_void_p),
    )


def words(*values: int) -> Any:  # noqa: ANN401
    """Return a structure of words of eight bytes."""
    return (Word * len(values))(*values)


def address(structure: Any) -> int:  # noqa: ANN401
    """Return where a structure lies."""
    return ctypes.addressof(structure)


class Vulkan:
    """The one device that there is, opened with cooperative matrices."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libvulkan.so.1")
        application = words(APPLICATION_INFO, 0, 0, 0, 0, VULKAN_1_3)
        instance = words(INSTANCE_INFO, 0, 0, address(application), 0, 0, 0, 0)
        handle = self._made("vkCreateInstance", instance)
        count, gpu = ctypes.c_uint32(1), Word()
        self._library.vkEnumeratePhysicalDevices(
            Word(handle), ctypes.byref(count), ctypes.byref(gpu)
        )
        if not gpu.value:
            raise LookupError("the null device did not open")
        priority = ctypes.c_float(1)
        queue = words(QUEUE_INFO, 0, 0, 1, address(priority))
        names = (ctypes.c_char_p * 1)(b"VK_KHR_cooperative_matrix")
        device = words(DEVICE_INFO, 0, 1 << 32, address(queue), 0, 0, 1, address(names), 0)
        device[5], device[6] = 0, 1
        self._device = self._made("vkCreateDevice", gpu.value, device)

    def _made(self, name: str, *arguments: Any) -> int:  # noqa: ANN401
        """Call a function that makes something, with handles and structures."""
        made = Word()
        given = [Word(each) if isinstance(each, int) else ctypes.byref(each) for each in arguments]
        status = getattr(self._library, name)(*given, None, ctypes.byref(made))
        if status:
            raise LookupError(f"{name} returned {status}")
        return made.value

    def compile(self, spirv: bytes, bindings: list[tuple[int, bool]], wave: int) -> None:
        """Compile a kernel for waves of so many lanes."""
        code = ctypes.create_string_buffer(spirv, len(spirv))
        of_module = words(MODULE_INFO, 0, 0, len(spirv), address(code))
        module = self._made("vkCreateShaderModule", self._device, of_module)
        slots = (SetBinding * len(bindings))(
            *(SetBinding(n, UNIFORM if plain else STORAGE, 1, COMPUTE) for n, plain in bindings)
        )
        of_set = words(SET_LAYOUT_INFO, 0, len(bindings) << 32, address(slots))
        made_set = words(self._made("vkCreateDescriptorSetLayout", self._device, of_set))
        of_layout = words(LAYOUT_INFO, 0, 1 << 32, address(made_set), 0, 0)
        layout = self._made("vkCreatePipelineLayout", self._device, of_layout)
        size = words(SUBGROUP_SIZE_INFO, 0, wave)
        entry = ctypes.create_string_buffer(b"main")
        stage = (STAGE_INFO, address(size), FULL_SUBGROUPS | COMPUTE << 32, module)
        info = words(COMPUTE_INFO, 0, 0, *stage, address(entry), 0, layout, 0, 0)
        pipeline = Word()
        status = self._library.vkCreateComputePipelines(
            Word(self._device), Word(0), 1, ctypes.byref(info), None, ctypes.byref(pipeline)
        )
        if status:
            raise LookupError(f"vkCreateComputePipelines returned {status}")


def compile_all(folder: Path) -> None:
    """Compile the numbered files of a folder, in order."""
    vulkan = Vulkan()
    for number, bindings in enumerate(json.loads((folder / "bindings.json").read_text())):
        vulkan.compile((folder / f"{number}.spv").read_bytes(), bindings, UNIT[3])


@dataclass(frozen=True, slots=True)
class Figures:
    """The compiler's figures of a kernel with units; `cost` is in words, of the main loop."""

    name: str
    vgprs: int
    spills: int
    lds: int
    waves: int
    cost: str


def collected(family: str, folder: Path) -> list[Figures]:
    """Compile the kernels for a family, in a folder that is there, and return their figures.

    Raises
    ------
    tools.Missing
        A tool is not there.
    """
    found = list(kernels())
    translated(found, folder)
    (folder / "bindings.json").write_text(json.dumps([each.bindings for each in found]))
    work = folder / family
    message = tools.run(["benchmarks.gpu_costs.units", "--compile", str(folder)], work, family)
    if message:
        sys.stderr.write(f"{message}\n")
    return [_figures(each, work / "out" / f"{number:05}") for number, each in enumerate(found)]


def _figures(kernel: Kernel, path: Path) -> Figures:
    stats = json.loads(path.with_suffix(".json").read_text())
    loop = peer.loop_of(path.with_suffix(".s").read_text())
    if loop is None:
        cost = "no loop multiplies"
    elif kernel.pairs:
        a_pair = loop.instructions * kernel.threads / kernel.pairs
        cost = f"{a_pair:.1f} lane-instructions a pair of query and key"
    else:
        cost = f"{1 / loop.a_product:.2f} multiply-adds an instruction"
    spills = stats["Spilled VGPRs"] + stats["Spilled SGPRs"]
    sizes = stats["VGPRs"], spills, stats["LDS size"], stats["Subgroups per SIMD"]
    return Figures(kernel.name, *sizes, cost)


def main(families: list[str]) -> None:
    """Print a table for each family."""
    for family in families or FAMILIES:
        with tempfile.TemporaryDirectory() as name:
            rows = collected(family, Path(name))
        sys.stdout.write(f"{family}: VGPRs, spills, workgroup memory, waves; of the main loop\n")
        for row in rows:
            sizes = f"{row.vgprs:4} {row.spills:3} {row.lds:6} {row.waves:3}"
            sys.stdout.write(f"    {row.name:34} {sizes}  {row.cost}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"]:
        compile_all(Path(sys.argv[2]))
    else:
        try:
            main(sys.argv[1:])
        except tools.Missing as error:
            sys.stdout.write(f"{error}\n")
