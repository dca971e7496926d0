"""Make `tests/data/zoo.json` and `tests/data/logits/zoo.npz`: outlines of models, and logits.

    PYTHON tests/data/make_zoo.py [NAMES]

PYTHON has what the header of ``../shared/tools/tiny_models.py`` asks for. That tool makes a tiny
model of a Hugging Face class and converts it; of the file its keys, and names and shapes of its
weights are kept. `tests.models.outlines` draws weights for them, by name; llama.cpp's logits of the
model that results are kept, in exact arithmetic, for a few rows; of an encoder its last states.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
TOOLS = ROOT.parent / "shared" / "tools"
sys.path[:0] = [str(ROOT), str(TOOLS)]

import numpy as np  # noqa: E402
import tiny_models  # noqa: E402

import tests  # noqa: E402, F401  before another program's

tiny_models.import_converter()  # whose gguf is newer than the one that others would import

from oracle_logits import Oracle  # noqa: E402

from tests.models.outlines import (  # noqa: E402
    LOGITS,
    OUTLINES,
    ROWS,
    TOKENS,
    outlines,
    written,
)
from tests.models.related import OF_IMAGES, POOLED, RELATED, SOURCE, given_to  # noqa: E402

SMALL = {"d": 64, "nh": 4, "nkv": 2, "hd": 16, "ff": 96, "eff": 32, "V": 270, "ctx": 64, "win": 8}
MOST_LAYERS = 25  # llama.cpp knows some models by more
FEW_LAYERS = 8  # as many are written out one by one
IGNORED = ("general.", "tokenizer.", "GGUF.")


class Dims(tiny_models.Dims):
    """The tool's dimensions, smaller."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.__dict__.update(SMALL)


def outline(path: Path) -> dict[str, Any]:
    """Keys of a file, names and shapes of its weights; once where all layers have it alike."""
    import gguf

    reader = gguf.GGUFReader(path)
    keys = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith(IGNORED)
    }
    shapes = {t.name: [int(n) for n in reversed(t.shape)] for t in reader.tensors}
    architecture = reader.fields["general.architecture"].contents()
    return {"architecture": architecture, "keys": keys, "weights": folded(shapes)}


def folded(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Shapes by name, with ``blk.*.`` for all layers of a model of many."""
    numbers = {name.split(".")[1] for name in shapes if name.startswith("blk.")}
    if len(numbers) <= FEW_LAYERS:
        return shapes
    found: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        start, _, own = name.partition(".")
        of_all = [f"{start}.{number}.{own.partition('.')[2]}" for number in numbers]
        alike = start == "blk" and all(shapes.get(other) == shape for other in of_all)
        found[f"blk.*.{own.partition('.')[2]}" if alike else name] = shape
    return found


def made(name: str, folder: Path) -> None:
    """Write the outline of a model, and logits of what is drawn for it."""
    path = folder / f"{name}.gguf"
    tiny_models.make(name, str(path), length=len(TOKENS))
    found = outline(path)
    other = written(folder / f"{name}-drawn.gguf", found)
    found_by_other = tiny_models.oracle(tiny_models.SPECS[name], str(other), TOKENS)
    np.save(folder / "logits.npy", found_by_other[list(ROWS)].astype(np.float32))
    (folder / "outline.json").write_text(json.dumps(found), encoding="utf-8")


def made_of_kin(name: str, folder: Path) -> None:
    """Write results of a model whose outline is made of another one's."""
    found = outlines() | {name: make(outlines()) for name, (_, make) in POOLED.items()}
    path = written(folder / f"{name}.gguf", found[name])
    if name in POOLED:
        with_pooling = Oracle(
            str(path), exact=True, threads=1, embeddings=True, pooling=POOLED[name][0]
        )
        np.save(folder / "logits.npy", with_pooling.embed(TOKENS).astype(np.float32))
        return
    if name in OF_IMAGES:
        results = of_an_image(found[name], path)[list(ROWS)].astype(np.float32)
        np.save(folder / "image.npy", results)
    if found[name]["architecture"] == "t5":
        logits, best = of_an_answer(path)
        np.save(folder / "logits.npy", logits[list(ROWS)].astype(np.float32))
        np.save(folder / "answer.npy", np.array(best, np.int32))
        return
    causal = found[name]["keys"].get(f"{found[name]['architecture']}.attention.causal", True)
    spec = SimpleNamespace(kind="logits" if causal else "hidden")
    results = tiny_models.oracle(spec, str(path), TOKENS)
    np.save(folder / "logits.npy", results[list(ROWS)].astype(np.float32))


def of_an_image(outline: dict[str, Any], path: Path) -> np.ndarray:
    """Logits of embeddings that stand in several dimensions."""
    import llama_cpp

    oracle, count = Oracle(str(path), exact=True, threads=1), len(TOKENS)
    given = given_to(outline, count)
    embeddings = np.ascontiguousarray(given["embeddings"])
    places = np.zeros((4, count), np.int32)
    places[:3] = given["rope_positions"].T
    batch = oracle._batch(TOKENS)
    batch.token = None
    batch.embd = embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    batch.pos = places.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_pos))
    if llama_cpp.llama_decode(oracle.ctx, batch):
        raise RuntimeError("llama_decode failed")
    found = llama_cpp.llama_get_logits(oracle.ctx)
    return np.ctypeslib.as_array(found, shape=(count, oracle.n_vocab)).copy()


def of_an_answer(path: Path) -> tuple[np.ndarray, list[int]]:
    """Logits of an answer to `SOURCE`, and the best tokens of another one."""
    import llama_cpp

    oracle = Oracle(str(path), exact=True, threads=1)
    if llama_cpp.llama_encode(oracle.ctx, oracle._batch(SOURCE)):
        raise RuntimeError("llama_encode failed")
    logits = oracle.logits(TOKENS)
    oracle.reset()
    best = [llama_cpp.llama_model_decoder_start_token(oracle.model)]
    for _ in range(24):
        best.append(int(oracle.feed(best[-1:])[-1].argmax()))
    return logits, best[1:]


def main(names: list[str]) -> None:
    tiny_models.Dims = Dims
    tiny_models.preload()
    for name in [n for n in (*RELATED, *POOLED) if not names or n in names]:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            _, told = tiny_models.isolated(
                lambda name=name, folder=folder: made_of_kin(name, folder), 120
            )
            if (folder / "logits.npy").exists():
                keep_logits(name, folder)
            else:
                print(f"{name}: {told.strip().splitlines()[-1:]}", file=sys.stderr)  # noqa: T201
    for name in sorted({*tiny_models.SPECS} & {*(names or tiny_models.SPECS)}):
        spec = tiny_models.SPECS[name]
        if spec.kind not in ("logits", "hidden") or spec.status != "ok":
            continue
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            # In a process of its own: converters keep what they were told, and llama.cpp aborts.
            _, told = tiny_models.isolated(lambda name=name, folder=folder: made(name, folder), 120)
            if (folder / "outline.json").exists():
                keep(name, folder)
            else:
                print(f"{name}: {told.strip().splitlines()[-1:]}", file=sys.stderr)  # noqa: T201


def keep(name: str, folder: Path) -> None:
    """Put a model among the others, unless it has too many layers."""
    found = json.loads((folder / "outline.json").read_text(encoding="utf-8"))
    if found["keys"][f"{found['architecture']}.block_count"] > MOST_LAYERS:
        return
    kept = json.loads(OUTLINES.read_text(encoding="utf-8")) if OUTLINES.exists() else {}
    kept[name] = found
    lines = [f"{json.dumps(n)}: {json.dumps(kept[n])}" for n in sorted(kept)]
    OUTLINES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    keep_logits(name, folder)


def keep_logits(name: str, folder: Path) -> None:
    """Put results of a model among the others."""
    logits = dict(np.load(LOGITS)) if LOGITS.exists() else {}
    logits[name] = np.load(folder / "logits.npy")
    for further in ("image", "answer"):
        if (folder / f"{further}.npy").exists():
            logits[f"{further} for {name}"] = np.load(folder / f"{further}.npy")
    np.savez_compressed(LOGITS, **{n: logits[n] for n in sorted(logits)})


if __name__ == "__main__":
    main(sys.argv[1:])
