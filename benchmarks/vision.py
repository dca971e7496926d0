"""Measure pictures as input: towers, preprocessing, prefixes, and streams next to a tower.

::

    python -m benchmarks.vision                                 what needs no other program
    python -m benchmarks.vision --part towers --peer siglip=gemma3.gguf --peer qwen=qwen2.gguf
    python -m benchmarks.vision --part costs                    static costs on navi31

All figures are ratios of turns in one run. Times are processor seconds of the process that does the
work, which other jobs of a machine change less than the clock does; lavapipe counts as the process.

Towers have published widths and random weights in f16. A tower's layers are equal, so that two of
them are run instead of 27 or 32. The peer is llama.cpp in the npm package ``@fugood/llama.node``,
see `vision_peer.mjs`; a text model for it must have the width of the tower's rows (`--width`).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import gguf
import numpy as np
from PIL import Image

import wgpu_backend
from benchmarks.gpu_costs.models import Sizes as TextSizes
from benchmarks.gpu_costs.models import sparse_gguf
from wgpu_backend import Engine, Generation
from wgpu_backend.device.adapters import DeviceInfo, Devices
from wgpu_backend.engine import towers as engine_towers
from wgpu_backend.engine.batching import pace
from wgpu_backend.engine.batching.step import Step
from wgpu_backend.engine.media import MARKER, Inserted, Part, Prompt
from wgpu_backend.engine.towers import Graphs
from wgpu_backend.files.gguf.parts import tower_part
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.media.pictures import read_picture
from wgpu_backend.ml.backend import Backend, BackendParams, make_executor
from wgpu_backend.nn.tower import Tower, projector_kinds, tower_class

PARTS = ("towers", "preprocessing", "question", "streams", "costs")
EYES = Path(wgpu_backend.__file__).parent / "bundled" / "eyes.gguf"
QUESTION = "Which colour?"
STREAMS, LONGEST = 4, 1024
Figures = dict[str, str]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The published sizes of a tower.

    Parameters
    ----------
    kind : str
        Projector type.
    width, inner, heads, layers, patch, side : int
        `side` is of the measured picture, in pixels.
    """

    kind: str
    width: int
    inner: int
    heads: int
    layers: int
    patch: int
    side: int


# google/siglip-so400m-patch14-384 (27 x 27 patches) and Qwen/Qwen2.5-VL-3B-Instruct, as in their
# config.json. Qwen's has one layer of eight without windows; two layers are one of each.
TOWERS = {
    "siglip": Sizes("gemma3", 1152, 4304, 16, 27, 14, 378),
    "qwen": Sizes("qwen2.5vl_merger", 1280, 3420, 16, 32, 14, 392),
}


# A quarter of the widths of google/gemma-3-4b-it, with an eighth of its patches: a step of the
# streams and a product of the tower keep about their proportion.
SMALL = Sizes("gemma3", 256, 1024, 4, 27, 14, 378)
SMALL_TEXT = TextSizes(8, 512, 8, 4, 64, 2048, 1024)


def write_tower(path: Path, sizes: Sizes, layers: int, width: int, *, full: bool = True) -> Path:
    """Write a tower in llama.cpp's layout, with random weights.

    Parameters
    ----------
    layers : int
        Layers that it has.
    width : int
        Columns of its rows.
    full : bool
        Whether weights are random; otherwise they are zeros, which is quicker.
    """
    writer = gguf.GGUFWriter(path, "clip")
    siglip = sizes.kind == "gemma3"
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", sizes.kind)
    for name, value in (
        ("projection_dim", width), ("image_size", sizes.side), ("patch_size", sizes.patch),
        ("embedding_length", sizes.width), ("feed_forward_length", sizes.inner),
        ("block_count", layers), ("attention.head_count", sizes.heads),
    ):  # fmt: skip
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5] * 3)
    if siglip:
        writer.add_bool("clip.use_gelu", True)
        writer.add_uint32("clip.vision.projector.scale_factor", 3)
    else:
        writer.add_bool("clip.use_silu", True)
        writer.add_uint32("clip.vision.n_wa_pattern", layers)
    random = np.random.default_rng(0)
    for name, shape in _weights(sizes, layers, width):
        matrix = len(shape) > 1 and "position" not in name
        values = random.standard_normal(shape, np.float32) * 0.02 if full else np.zeros(shape)
        values = values + (len(shape) == 1 and name.endswith("weight"))
        writer.add_tensor(name, values.astype(np.float16 if matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _weights(sizes: Sizes, layers: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """List the names and shapes of a tower's tensors."""
    cols, inner, siglip = sizes.width, sizes.inner, sizes.kind == "gemma3"
    patches = (cols, 3, sizes.patch, sizes.patch)
    yield "v.patch_embd.weight", patches
    if siglip:
        yield "v.patch_embd.bias", (cols,)
        yield "v.position_embd.weight", ((sizes.side // sizes.patch) ** 2, cols)
        yield "v.post_ln.bias", (cols,)
        yield "mm.input_projection.weight", (cols, width)
        yield "mm.soft_emb_norm.weight", (cols,)
    else:
        yield "v.patch_embd.weight.1", patches
        for name, out in (("mm.0", 4 * cols), ("mm.2", width)):
            yield f"{name}.weight", (out, 4 * cols)
            yield f"{name}.bias", (out,)
    yield "v.post_ln.weight", (cols,)
    matrices = {f"attn_{name}": (cols, cols) for name in ("q", "k", "v", "out")}
    matrices |= {"ffn_up": (inner, cols), "ffn_down": (cols, inner)}
    if not siglip:
        matrices["ffn_gate"] = (inner, cols)
    for layer in range(layers):
        for name, shape in matrices.items():
            yield f"v.blk.{layer}.{name}.weight", shape
            yield f"v.blk.{layer}.{name}.bias", shape[:1]
        for name in ("ln1", "ln2"):
            yield f"v.blk.{layer}.{name}.weight", (cols,)
            if siglip:
                yield f"v.blk.{layer}.{name}.bias", (cols,)


def picture(side: int, seed: int) -> Image.Image:
    """Make a picture of smooth noise."""
    small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC)


def device_named(name: str) -> DeviceInfo | None:
    """Return the device that a name selects; None for the best."""
    return Devices().find(name) if name else None


# The towers, against llama.cpp.


class Peer:
    """The peer's process, which encodes a picture for each line of input."""

    def __init__(self, text: str, tower: Path) -> None:
        program = Path(os.environ.get("VISION_PEER", Path(__file__).with_name("vision_peer.mjs")))
        words = ["node", str(program), text, str(tower)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def encode(self, path: Path) -> float:
        """Return the processor seconds of encoding a picture."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018
        before = self._spent()
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("encoded "):
                return self._spent() - before
        raise RuntimeError(f"the peer ended with {self._process.wait()}")

    def _spent(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text("ascii").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def measure_towers(given: argparse.Namespace) -> Figures:
    """Measure each tower's pass, and the peer's in turns with it."""
    figures: Figures = {}
    peers: dict[str, str] = dict(word.split("=", 1) for word in given.peer)
    with tempfile.TemporaryDirectory() as name:
        for tower, sizes in TOWERS.items():
            path = write_tower(Path(name) / f"{tower}.gguf", sizes, given.layers, given.width)
            figures |= _measure_tower(given, tower, sizes, path, peers.get(tower))
    return figures


def _measure_tower(
    given: argparse.Namespace, name: str, sizes: Sizes, path: Path, text: str | None
) -> Figures:
    pictures = [path.with_name(f"{name}{i}.png") for i in range(given.repeats + 1)]
    for i, each in enumerate(pictures):
        picture(sizes.side, i).save(each)
    peer = Peer(text, path) if text else None
    try:
        with opened_tower(path, device_named(given.device)) as tower:
            graphs = Graphs(tower)
            own: list[float] = []
            others: list[float] = []
            for each in pictures:
                media = tower.prepare(read_picture(each))
                before = time.process_time()
                graphs.run(media)
                own.append(time.process_time() - before)
                others += [peer.encode(each)] if peer else []
                print(name, own[-1:], others[-1:], file=sys.stderr, flush=True)
            graphs.close()
    finally:
        if peer is not None:
            peer.close()
    # The first turn compiles the kernels.
    seconds = median(own[1:])
    figures = {f"{name}: processor seconds of {given.layers} layers": f"{seconds:.2f}"}
    rate = products(sizes, given.layers) / seconds / 1e9
    figures[f"{name}: GFLOP a processor second, products alone"] = f"{rate:.1f}"
    if peer is not None:
        ratio = median(b / a for a, b in zip(own[1:], others[1:], strict=True))
        figures[f"{name}: times the peer's speed"] = f"{ratio:.2f}"
    return figures


def products(sizes: Sizes, layers: int) -> float:
    """Return the operations of a tower's matrix products with weights."""
    matrices = 2 if sizes.kind == "gemma3" else 3
    a_layer = 4 * sizes.width**2 + matrices * sizes.width * sizes.inner
    return 2.0 * (sizes.side // sizes.patch) ** 2 * layers * a_layer


def make_tower(backend: Backend) -> Tower:
    """Make the tower of a backend whose weights are loaded."""
    [(modality, kind)] = projector_kinds(backend.config).items()
    return tower_class(backend.config, modality, kind)(backend)


class opened_tower:  # noqa: N801  used as a function
    """A tower that is loaded on a device, until the block ends."""

    def __init__(self, path: Path, device: DeviceInfo | None) -> None:
        kind = "cpu" if device is not None and device.kind == "cpu" else "wgpu"
        executor = make_executor(kind, BackendParams(device))
        self._backend = Backend(tower_part(open_gguf(path)), executor)

    def __enter__(self) -> Tower:
        self._backend.load()
        return make_tower(self._backend)

    def __exit__(self, *error: object) -> None:
        self._backend.close()


# Preprocessing, against Pillow.


def measure_preprocessing(given: argparse.Namespace) -> Figures:
    """Measure a JPEG of 12 megapixels from bytes to a tower's inputs."""
    data = io.BytesIO()
    picture(256, 0).resize((4000, 3000), Image.Resampling.BICUBIC).save(data, "JPEG", quality=90)
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as name:
        for tower, sizes in TOWERS.items():
            path = write_tower(Path(name) / "t.gguf", sizes, 1, 64, full=False)
            with opened_tower(path, device_named("cpu")) as made:
                figures |= _measure_preprocessing(given, tower, made, data.getvalue())
    return figures


def _measure_preprocessing(
    given: argparse.Namespace, name: str, tower: Tower, data: bytes
) -> Figures:
    how = Image.Resampling.BILINEAR if name == "siglip" else Image.Resampling.BICUBIC
    patches = tower.prepare(read_picture(data)).arrays["patches"]
    if name == "siglip":
        side = round(len(patches) ** 0.5) * 14
        size = (side, side)
    else:
        size = (patches.shape[1] * 28, patches.shape[0] * 28)

    def by_pillow() -> object:
        return Image.open(io.BytesIO(data)).resize(size, how)

    def own() -> object:
        return tower.prepare(read_picture(data))

    ratios = [spent(own) / spent(by_pillow) for _ in range(given.repeats + 1)][1:]
    return {f"{name}: preprocessing over Pillow's decode and resize": f"{median(ratios):.2f}"}


def spent(act: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    before = time.process_time()
    act()
    return time.process_time() - before


# The engine.


def prepare(engine: Engine, image: Image.Image, text: str = QUESTION) -> Prompt:
    """Prepare a question about a picture as a raw prompt, for which no chat template is needed."""
    data = io.BytesIO()
    image.save(data, "PNG")
    model = engine.model
    return model.towers.raw(model.prompter, MARKER + text, [Part("image", data.getvalue())])


def ask(engine: Engine, prompt: Prompt) -> Generation:
    """Ask a question for one token."""
    return engine.complete(prompt.tokens, placed=prompt.placed, max_tokens=1)


def measure_question(given: argparse.Namespace) -> Figures:
    """Measure another question about the same picture over the first one's prefill."""
    shares: list[float] = []
    texts = (QUESTION, "Which shape?")
    with (
        wgpu_backend.load(
            given.model or EYES, device=given.device or None, mmproj=given.mmproj, num_parallel=2
        ) as model,
        Engine(model) as engine,
    ):
        for turn in range(given.repeats + 1):
            times: list[float] = []
            given_picture = picture(512, turn)
            for text in texts:
                before = time.process_time()
                ask(engine, prepare(engine, given_picture, text)).result()
                times += [time.process_time() - before]
            shares.append(times[1] / times[0])
    name = Path(given.model or EYES).stem
    return {f"{name}: second question over the first, to one token": f"{median(shares[1:]):.1%}"}


def measure_streams(given: argparse.Namespace) -> Figures:
    """Measure how long other streams wait while a picture is encoded, in steps."""
    with tempfile.TemporaryDirectory() as name:
        model, mmproj = given.model, given.mmproj
        if model is None:
            model = sparse_gguf(Path(name) / "model.gguf", SMALL_TEXT, "f16", tokenizer="gpt2")
            mmproj = write_tower(
                Path(name) / "mmproj.gguf", SMALL, SMALL.layers, SMALL_TEXT.hidden, full=False
            )
        device, most = given.device or None, STREAMS + 1
        with (
            wgpu_backend.load(
                model, device=device, mmproj=mmproj, num_parallel=most, warmup=given.warmup
            ) as loaded,
            Engine(loaded) as engine,
        ):
            first, *turns = [_follow(engine, turn) for turn in range(given.repeats + 1)]
    longest, lost, whole, count = (median(values) for values in zip(*turns, strict=True))
    return {
        "that of the first picture, whose graph is recorded": f"{first[0]:.1f}",
        "steps that the first picture's tower takes from the streams": f"{first[1]:.1f}",
        "steps that another picture's tower takes from them": f"{lost:.1f}",
        f"longest wait of {STREAMS} streams while a picture is encoded, in steps": f"{longest:.1f}",
        "the picture's time to its first token, in steps": f"{whole:.1f}",
        "pieces of the tower": f"{count:.0f}",
    }


class _ProcessorTime:
    """The module `time` with the processor time in place of the clock."""

    perf_counter = staticmethod(time.process_time)
    sleep = staticmethod(time.sleep)


def _follow(engine: Engine, turn: int) -> tuple[float, float, float, int]:
    """Return the longest wait of streams for a step, and times of a picture, all in steps.

    These are the time of the tower and that to the first token. Also the number of pieces of the
    tower, with a step after each. A wait is a piece and the step after it; passes that read the
    prompt's text are not counted. The clock is the processor time of the process, read in the
    engine's thread.
    """
    core, towers = engine._core, engine.model.towers
    read, advance = core._read, towers.advance
    # So the pieces are not sized by the time that other jobs of the machine take.
    engine_towers.time = pace.time = _ProcessorTime  # pyright: ignore
    times, pieces = list[float](), list[float]()

    def read_and_note(step: Step) -> None:
        read(step)
        times.append(time.process_time())

    def advance_and_note(
        inserted: Inserted, index: int, seconds: float, *, together: int = 1
    ) -> None:
        before = time.process_time()
        advance(inserted, index, seconds, together=together)
        pieces.append(time.process_time() - before)

    streams = [
        engine.complete(str(i), max_tokens=LONGEST, ignore_eos=True, options={"seed": i})
        for i in range(STREAMS)
    ]
    prompt = prepare(engine, picture(512, turn))
    core._read, towers.advance = read_and_note, advance_and_note
    try:
        while len(times) < LONGEST // 8:
            time.sleep(0.001)
        begin = time.process_time()
        ask(engine, prompt).result()
        end = time.process_time()
    finally:
        core._read, towers.advance = read, advance
        engine_towers.time = pace.time = time
    for each in streams:
        each.cancel()
    steps = [(b - a, b) for a, b in pairwise(times)]
    before = median(step for step, at in steps if at < begin)
    found = 1 + max(pieces) / before, sum(pieces) / before, (end - begin) / before
    return *found, len(pieces)


# Static costs.


def measure_costs(given: argparse.Namespace) -> Figures:
    """Compute the share of a card's peak that products of a tower's pass reach, from static costs.

    The pass takes the time of its longest roof, dispatch by dispatch, see `gpu_costs.predict`. The
    products' roof is the time of the products alone.
    """
    from benchmarks.gpu_costs import predict
    from benchmarks.gpu_costs.__main__ import arguments, collected
    from benchmarks.gpu_costs.others import OTHERS

    names = ",".join(f"tower {name}" for name in TOWERS)
    options = arguments(["--model", OTHERS, "--graph", names, "--family", "navi31", "--lint"])
    rows = collected(options, "navi31")[1]
    card = next(card for card in predict.CARDS if card.name == "RX 7900 XTX")
    figures: Figures = {}
    for name in TOWERS:
        own = [row for row in rows if row["graph"] == f"tower {name}"]
        whole, part = 0.0, 0.0
        for row in own:
            took = max(predict.dispatch_times(row, card).values()) * row["count"]
            whole += took
            part += took if row["op"].startswith("linear") else 0.0
        figures[f"{name}: time of the products over the whole pass, navi31"] = f"{part / whole:.2f}"
        rate = products(TOWERS[name], 2) / (whole * 1e6) / card.peak
        figures[f"{name}: products of the whole pass over the peak in f32"] = f"{rate:.2f}"
    return figures


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--device", default="", help="lavapipe, cpu, or part of a device's name")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, default=2, help="of a tower")
    parser.add_argument("--width", type=int, default=64, help="columns of a tower's rows")
    parser.add_argument("--peer", action="append", default=[], metavar="TOWER=TEXT.gguf")
    parser.add_argument("--model", help="a model that takes pictures, instead of eyes")
    parser.add_argument("--mmproj")
    parser.add_argument("--no-warmup", dest="warmup", action="store_false")
    return parser.parse_args(words)


def main() -> None:
    given = parse()
    acts = {
        "towers": measure_towers,
        "preprocessing": measure_preprocessing,
        "question": measure_question,
        "streams": measure_streams,
        "costs": measure_costs,
    }
    for part in given.part or PARTS[:-1]:
        print(json.dumps(acts[part](given), indent=1, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
