"""Measure the cost of rounded activations for trained models: perplexity and changed best tokens.

::

    python -m benchmarks.quality MODEL.gguf ... --json OUT.json --markdown OUT.md
    python -m benchmarks.quality MODEL.gguf --ways split --tokens 1024
    python -m benchmarks.quality MODEL.gguf --peer path/to/python    # and llama.cpp's CPU backend

Every way of rounding is compared with the exact one (activations in f32) over text of this project,
in windows of 512 tokens. A way may be a default if perplexity rises by at most 0.5 % and the best
token is the same in at least 98 % of places; the command fails where a default is not that good.

NumPy runs the graphs that fusion makes for a kind of device, with the same rounded numbers (only
the order of sums differs), so no such device has to be there for these ways:

- ``split``: two parts of eight bits, of many columns on GPUs that multiply packed bytes and have no
  f16, and on software rasterisers of weights in textures;
- ``q16``: sixteen bits, on GPUs that multiply packed bytes; every product as those of few columns;
- ``f16``: on other GPUs with f16; every product as those of few columns, whose rounding is the
  coarser;
- ``coarse``: eight bits alone, where a caller asks for that.

Sums in f16 depend on the kernel, so the ways of prompts run on a device, which may be a rasteriser
with f16. They are left out unless ``--ways`` names them:

- ``pairs``: products of many columns in pairs of f16, and attention in tiles of f16;
- ``matrix``: products and attention by matrix units, through Dawn.

The peer is a Python with what ``../shared/tools/oracle_logits.py`` needs; ``llama.cpp`` is its CPU
backend as people run it, which rounds activations to eight bits, too, and ``llama.cpp exact`` a
copy of the model in F32.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F16
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.kernels import complete
from wgpu_backend.kernels.gpu.matvec import COLUMNS
from wgpu_backend.ml.backend import Backend, BackendParams, make_executor
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.model import model_class
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse
from wgpu_backend.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
TEXTS = ("CONTRIBUTING.md", "docs/predicted-speed.md")
WINDOW = 512
TOOLS = ROOT.parent / "shared" / "tools"
EVERY = 16  # of so many rows of logits one is kept, to compare them themselves
MOST_RISE, LEAST_AGREEMENT = 0.5, 98.0  # percent, of a default

_RASTERISER = Capabilities(software=True, subgroups=True, lanes=8, int64=True)
_WITH_F16 = Capabilities(f16=True, subgroups=True, fused=True)
_WITH_BYTES = replace(_WITH_F16, integer_dot=True)


@dataclass(frozen=True, slots=True)
class Way:
    """A way of rounding activations.

    Parameters
    ----------
    capabilities : Capabilities or None
        Of a device that does so; None for f32.
    coarse : bool
    chunk : int or None
        Tokens of a pass, where the rounding hangs on that.
    implementation : str or None
        Of WebGPU, by which a device runs the model; None for NumPy.
    """

    capabilities: Capabilities | None = None
    coarse: bool = False
    chunk: int | None = None
    implementation: str | None = None


WAYS = {
    "split": Way(replace(_WITH_BYTES, f16=False)),
    "q16": Way(_WITH_BYTES, chunk=COLUMNS),
    "f16": Way(_WITH_F16, chunk=COLUMNS),
    "coarse": Way(_RASTERISER, coarse=True),
}
ON_DEVICES = {
    "pairs": Way(implementation="wgpu"),
    "matrix": Way(implementation="dawn"),
}
DEFAULTS = ("split", "q16", "f16", *ON_DEVICES)


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a text under a way of rounding.

    Parameters
    ----------
    best : (tokens,), int
        The best next token after each.
    gains : (tokens - windows,), float
        Logarithm of the probability of each token but the first of a window.
    rows : (some, vocabulary), f32
        Every sixteenth row of logits.
    """

    best: NDArray[np.int64]
    gains: NDArray[np.float64]
    rows: NDArray[np.float32]

    @property
    def perplexity(self) -> float:
        """Perplexity of the tokens, each given those before it in its window."""
        return float(np.exp(-self.gains.mean()))


@dataclass(frozen=True, slots=True)
class Figures:
    """The difference of a way of rounding from the exact one.

    Parameters
    ----------
    model, way : str
    tokens : int
    perplexity : float
    rise : float
        Of perplexity, percent.
    agreement : float
        Places where the best token is the same, percent.
    error : float
        NMSE of logits.
    """

    model: str
    way: str
    tokens: int
    perplexity: float
    rise: float
    agreement: float
    error: float

    @classmethod
    def of(cls, model: str, way: str, found: Scores, exact: Scores) -> Figures:
        """Compare two ways."""
        rise = 100 * (found.perplexity / exact.perplexity - 1)
        agreement = 100 * float((found.best == exact.best).mean())
        error = nmse(found.rows, exact.rows)
        return cls(model, way, len(exact.best), found.perplexity, rise, agreement, error)

    @property
    def passes(self) -> bool:
        """Return whether the way may be a default."""
        return self.rise <= MOST_RISE and self.agreement >= LEAST_AGREEMENT


def scored(
    windows: Sequence[Sequence[int]], logits: Callable[[Sequence[int]], NDArray[np.float32]]
) -> Scores:
    """Compute the scores of windows of tokens, by a function from tokens to logits."""
    found: list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float32]]] = []
    for window in windows:
        rows = logits(window)
        largest = rows.max(axis=-1)
        totals = np.array(
            [
                np.exp(row - top).sum(dtype=np.float64)
                for row, top in zip(rows, largest, strict=True)
            ]
        )
        chosen = rows[np.arange(len(window) - 1), list(window[1:])]
        gains = chosen.astype(np.float64) - largest[:-1] - np.log(totals[:-1])
        found.append((rows.argmax(axis=-1), gains, rows[::EVERY].copy()))
    best, gains, kept = zip(*found, strict=True)
    return Scores(np.concatenate(best), np.concatenate(gains), np.concatenate(kept))


def opened(path: Path, way: Way) -> LanguageModel:
    """Open a model on NumPy, or on a device, with rounding as in a device's graphs."""
    executor = _on_numpy(way) if way.implementation is None else _on_a_device(way.implementation)
    backend = Backend(open_gguf(path), executor)
    backend.load(fused_weights=model_class(backend.config).fused_weights)
    model = LanguageModel(backend, WINDOW, F16)
    model.runner.chunk = way.chunk or model.runner.chunk
    return model


def _on_numpy(way: Way) -> NumpyExecutor:
    executor = NumpyExecutor(way.capabilities and complete(way.capabilities))
    if way.capabilities is not None:
        executor.rules = fusions(exact=False, coarse=way.coarse)
    return executor


def _on_a_device(implementation: str) -> Executor:
    """Open the best device, with the kernels of GPUs if it is a rasteriser."""
    found = make_executor("wgpu", BackendParams(exact=False, implementation=implementation))
    assert isinstance(found, WgpuExecutor)
    known = found.capabilities
    if known.software:
        has = found.device.capabilities
        known = complete(replace(has, subgroups=known.subgroups, lanes=0, software=False))
    if not known.f16 or (implementation == "dawn" and known.matrix is None):
        missing = "matrix units" if known.f16 else "arithmetic in f16"
        raise SystemExit(f"{found.info.name}, by {implementation}: needs {missing}")
    as_hardware = found.as_if(known)
    as_hardware.rules = fusions(exact=False, coarse=False)
    return as_hardware


def windows_of(path: Path, text: str, tokens: int) -> list[list[int]]:
    """Split a text into windows, each with the tokens that the tokenizer begins texts with."""
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    start, ids = tokenizer.encode(""), tokenizer.encode(text)
    body, each = ids[len(start) :], WINDOW - len(start)
    count = tokens // WINDOW
    if len(body) < count * each:
        raise SystemExit(f"the text has {len(body)} tokens, needs {count * each}")
    return [[*start, *body[i * each : (i + 1) * each]] for i in range(count)]


PEER = """
import json, sys
import numpy as np
from oracle_logits import Oracle
path, exact, every, out, windows = json.load(sys.stdin)
oracle = Oracle(path, exact=exact, native=not exact, n_ctx=len(windows[0]))
best, gains, kept = [], [], []
for window in windows:
    rows = oracle.logits(window)
    top = rows.max(-1)
    totals = np.array([np.exp(r - t).sum(dtype=np.float64) for r, t in zip(rows, top)])
    chosen = rows[np.arange(len(window) - 1), window[1:]].astype(np.float64)
    best.append(rows.argmax(-1)); gains.append(chosen - top[:-1] - np.log(totals[:-1]))
    kept.append(rows[::every].copy())
np.savez(out, best=np.concatenate(best), gains=np.concatenate(gains), rows=np.concatenate(kept))
"""


def peers(python: str, path: Path, windows: Sequence[Sequence[int]], *, exact: bool) -> Scores:
    """Compute the scores of llama.cpp's CPU backend."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "scores.npz")
        asked = json.dumps([str(path.resolve()), exact, EVERY, out, windows])
        subprocess.run([python, "-c", PEER], input=asked, text=True, check=True, cwd=TOOLS)
        with np.load(out) as found:
            return Scores(found["best"], found["gains"], found["rows"])


def figures(options: argparse.Namespace, path: Path, text: str) -> Iterator[Figures]:
    """Compare every way of a model with the exact one."""
    windows = windows_of(path, text, options.tokens)
    known = {**WAYS, **ON_DEVICES}
    makers = {name: partial(by_this, path, known[name], windows) for name in options.ways}
    if options.peer:
        for name, exact in (("llama.cpp", False), ("llama.cpp exact", True)):
            makers[name] = partial(peers, options.peer, path, windows, exact=exact)

    def scores(name: str, make: Callable[[], Scores]) -> Scores:
        place = f"{path.stem}-{name}-{options.tokens}-{_digest(text)[:12]}.npz"
        return kept(options.keep, place, make)

    exact = scores("exact", partial(by_this, path, Way(), windows))
    yield Figures.of(path.stem, "exact", exact, exact)
    for name, make in makers.items():
        yield Figures.of(path.stem, name, scores(name, make), exact)


def kept(folder: Path | None, name: str, make: Callable[[], Scores]) -> Scores:
    """Return the stored scores of a folder, or compute and store them."""
    if folder is None:
        return make()
    if not (folder / name).exists():
        np.savez(folder / name, **asdict(make()))
    with np.load(folder / name) as found:
        return Scores(found["best"], found["gains"], found["rows"])


def by_this(path: Path, way: Way, windows: Sequence[Sequence[int]]) -> Scores:
    """Compute the scores of this project."""
    with opened(path, way) as model:
        return scored(windows, model.logits)


def markdown(found: Sequence[Figures], digest: str) -> str:
    """Format all figures as a table."""
    lines = [
        "# What rounding activations costs trained models",
        "",
        "By `python -m benchmarks.quality`, over documents of this project (SHA-256 of the text",
        f"{digest[:12]}…) in windows of {WINDOW} tokens. A default may raise perplexity by",
        f"{MOST_RISE} % and has to keep {LEAST_AGREEMENT:.0f} % of best tokens. What ways of",
        "rounding are, and where they are taken, is said in `benchmarks/quality.py`.",
        "",
        "| model | activations | tokens | perplexity | rise, % | same best token, % "
        "| NMSE of logits | may be a default |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for f in found:
        verdict = "" if f.way == "exact" else "yes" if f.passes else "no"
        lines.append(
            f"| {f.model} | {f.way} | {f.tokens} | {f.perplexity:.3f} | {f.rise:+.3f} "
            f"| {f.agreement:.2f} | {f.error:.1e} | {verdict} |"
        )
    return "\n".join(lines) + "\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options of the command."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("quality", description=__doc__, formatter_class=formatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--text", type=Path, metavar="FILE", help="instead of the project's")
    parser.add_argument(
        "--ways", type=_ways, default=tuple(WAYS), help=",".join((*WAYS, *ON_DEVICES))
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="scores, for more ways later")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="adds to what it has")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args(words)
    if options.tokens < WINDOW or options.tokens % WINDOW:
        parser.error(f"--tokens: {options.tokens}, needs a multiple of {WINDOW}")
    return options


def _ways(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, text.split(",")))
    known = (*WAYS, *ON_DEVICES)
    strange = [name for name in found if name not in known]
    if strange:
        raise argparse.ArgumentTypeError(f"{strange[0]!r}, needs some of {','.join(known)}")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write; return 1 if a default is not good enough."""
    options = arguments(words)
    files = [options.text] if options.text else [ROOT / name for name in TEXTS]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    found = read(options.json, text)
    for path in options.models:
        for each in figures(options, path, text):
            print(each, file=sys.stderr, flush=True)
            found = [f for f in found if _place(f) != _place(each)] + [each]
            if options.json:
                write(options.json, found, text)
    found.sort(key=lambda f: (f.model, -f.tokens))
    table = markdown(found, _digest(text))
    print(table)
    if options.markdown:
        options.markdown.write_text(table, encoding="utf-8")
    return int(not all(f.passes for f in found if f.way in DEFAULTS))


def _place(figures: Figures) -> tuple[str, str, int]:
    """Return the key under which figures are stored."""
    return figures.model, figures.way, figures.tokens


def read(path: Path | None, text: str) -> list[Figures]:
    """Read stored figures of the same text."""
    if path is None or not path.exists():
        return []
    known = json.loads(path.read_text(encoding="utf-8"))
    return [Figures(**f) for f in known["figures"]] if known["text"] == _digest(text) else []


def write(path: Path, found: Sequence[Figures], text: str) -> None:
    """Store figures, and the text that they are of."""
    kept = {"text": _digest(text), "window": WINDOW, "figures": [asdict(f) for f in found]}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
