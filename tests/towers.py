"""Every tower and its language model against transformers, as a table.

    python -m tests.towers [NAMES] [--models FOLDER] [--make PYTHON] [--device DEVICE]
        [--seed N] [--size WxH]

The models are the tiny random ones of ``../shared/tools/tiny_towers.py``: a checkpoint, llama.cpp's
model and mmproj, and Ollama's one file, each with what transformers makes of a prompt with one
picture and one with two, and of a video for Qwen's models. With `--make` those that are not in the
folder are made, by a Python that has what the tool's header asks for. Figures are NMSE (sum of
squared differences by sum of squares); one in red missed its limit. `greedy` is the number of
tokens, of 16, that `generate` and an engine of two requests choose as transformers does
(tests/data/make_tower_greedy.py), or where its tokens were not made, as passes over the whole text
do.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import wgpu_backend as wb
from tests.data.tower_weights import frames
from wgpu_backend.engine.media import STAND_IN, Part
from wgpu_backend.testing import nmse

CHOOSER = Path(__file__).parent / "data" / "make_tower_greedy.py"
# Makes kinds that the tool does not have.
MAKER = Path(__file__).parent / "data" / "tiny_more_towers.py"
MADE_HERE = {"deepseek-ocr", "gemma3n", "gemma4-audio", "kimi-k2.5", "kimi-vl", "minicpm-v",
             "muse-glimmer"}  # fmt: skip
FILMER = Path(__file__).parent / "data" / "make_tower_videos.py"
VIDEO = "video"
TOOL = Path(__file__).parents[2] / "shared" / "tools" / "tiny_towers.py"
FOLDER = Path(tempfile.gettempdir()) / "wgpu-backend-towers"
LIMIT = 1e-9
GREEDY = 16
FILES = ("model.gguf", "hf", "ollama.gguf")
# What mmproj and Ollama's files leave out, where the tiny models differ from published ones.
LEFT_OUT = {
    "deepseek-ocr": {"tile": 32},
    "kimi-vl": {"most": 24},
    "qwen2.5-vl": {"pace": 4},
    "gemma4": {"most": 70, "is_causal": True},
    "llama4": {"most": 9},
    "muse-glimmer": {"most": 60, "row_eps": 2e-3},
    "mllama": {"statistics": ([0.5] * 3, [0.5] * 3)},
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model's folder, one of its files, and the number of pictures, or ``video``."""

    folder: Path
    file: str
    pictures: int | str

    def load(self, device: str) -> wb.LanguageModel:
        mmproj = self.folder / "mmproj.gguf" if self.file == "model.gguf" else None
        path = self.folder / self.file
        options: dict[str, Any] = {"exact": True, "kv_dtype": "f32", "num_ctx": 2048}
        model = wb.load(path, device=device, mmproj=mmproj, **options)
        if self.file != "hf":
            for name, value in LEFT_OUT.get(self.folder.name, {}).items():
                setattr(model.towers.get("image"), name, value)
        return model

    @property
    def prompt(self) -> str:
        if self.pictures == VIDEO:
            return str(self.reference("text"))
        told = json.loads((self.folder / "reference.json").read_text(encoding="utf-8"))
        text = told["prompts"][str(self.pictures)]
        # Its processor writes BOS, and the tool's tokenizer another one.
        return f"<|bos|><|bos|>{text}" if self.folder.name == "mllama" else text

    @property
    def parts(self) -> list[Part]:
        if not isinstance(self.pictures, int):
            # As in tests/data/make_tower_videos.py.
            return [Part("video", frames(5, 140, 196), 3.0)]
        # Gemma 3n has a sound after each picture.
        both = (("image", "picture{}.png"), ("audio", "sound{}.wav"))
        found = [
            Part(kind, self.folder / name.format(i))
            for i in range(self.pictures)
            for kind, name in both
        ]
        return [part for part in found if Path(str(part.source)).exists()]

    @property
    def tokens(self) -> list[int]:
        """Transformers' tokens after the prompt; empty if they are not to be compared with."""
        if self.pictures == VIDEO:
            return self.reference("tokens").tolist()
        file = self.folder / "greedy.json"
        if not file.exists():
            return []
        found = json.loads(file.read_text(encoding="utf-8"))[str(self.pictures)]
        # Transformers has no embedding for a token that stands for a tower's row. A random model
        # may choose one; a trained one does not.
        config = json.loads((self.folder / "hf/config.json").read_text(encoding="utf-8"))
        places = {config.get(f"{kind}_token_id") for kind in ("image", "audio", "video")}
        return [] if places.intersection(found) else found

    def reference(self, name: str) -> np.ndarray:
        if self.pictures == VIDEO:
            with np.load(self.folder / "video.npz") as arrays:
                return arrays[name]
        whole = f"p{self.pictures}.{name}"
        corrected = self.folder / "logits.npz"
        if corrected.exists():
            with np.load(corrected) as arrays:
                if whole in arrays:
                    return arrays[whole]
        with np.load(self.folder / "reference.npz") as arrays:
            found, mask = arrays[whole], f"p{self.pictures}.aspect_ratio_mask"
            if name == "embeds" and mask in arrays:
                # Without the rows of tiles that a picture does not have.
                tiles = arrays[mask].reshape(-1) > 0
                found = found.reshape(len(tiles), -1, found.shape[-1])[tiles]
                return found.reshape(-1, found.shape[-1])
            return found


def tokens_differ(model: wb.LanguageModel, case: Case) -> int | None:
    """Tokens that differ from transformers'; None if there are more or fewer of them."""
    prompt = model.towers.raw(model.prompter, case.prompt, case.parts)
    ids, media = case.reference("input_ids"), case.reference("media")
    if len(prompt.tokens) != len(ids):
        return None
    found = np.array([-1 if token >= STAND_IN else token for token in prompt.tokens])
    return int((found != np.where(is_row(ids, media), -1, ids)).sum())


def is_row(ids: np.ndarray, media: np.ndarray) -> np.ndarray:
    """Whether a token is a tower's row; Pixtral's ends of lines are media too, but text here."""
    return media & (ids == ids[media][0])


def figures(model: wb.LanguageModel, case: Case) -> dict[str, float]:
    """NMSE of rows and logits, tokens that differ, and equal greedy tokens."""
    prompt = model.towers.raw(model.prompter, case.prompt, case.parts)
    ids, media = case.reference("input_ids"), case.reference("media")
    embeds = case.reference("embeds")
    embeds = embeds[is_row(ids, media)[media]] if len(embeds) == media.sum() else embeds
    rows = np.concatenate([model.towers.encode(each) for each in prompt.placed])
    made: dict[str, float] = {}
    same = rows.size == embeds.size
    made["embeds"] = nmse(rows, embeds.reshape(rows.shape)) if same else float("inf")
    differ = tokens_differ(model, case)
    made["tokens"] = float("inf") if differ is None else differ
    inserted = model.towers.insert(prompt.placed)
    logits = model._rows("logits", prompt.tokens, model._logits, 1 << 20, inserted=inserted)
    logits = logits[:, : model.model.logit_cols]
    wanted = case.reference("logits")
    made["logits"] = nmse(logits, wanted) if logits.shape == wanted.shape else float("inf")
    made["greedy"] = min(greedy(model, prompt, case.tokens))
    return made


def greedy(model: wb.LanguageModel, prompt: Any, wanted: list[int]) -> list[int]:
    """Equal tokens of a stream, and of two requests at once, and of transformers."""
    wanted = wanted or choose(model, prompt)
    fields: dict[str, Any] = {
        "options": {"temperature": 0},
        "max_tokens": GREEDY,
        "ignore_eos": True,
        "placed": prompt.placed,
    }
    request = wb.Request.of(prompt.tokens, **fields)
    found = [[token for event in model.events(request) for token in event.tokens]]
    with wb.Engine(model, num_parallel=2) as engine:
        running = [engine.submit(wb.Request.of(prompt.tokens, **fields)) for _ in range(2)]
        found += [[*each.result().choices[0].tokens] for each in running]
    return [sum(a == b for a, b in zip(each, wanted, strict=True)) for each in found]


def choose(model: wb.LanguageModel, prompt: Any) -> list[int]:
    """Tokens of passes over the whole text."""
    tokens = [*prompt.tokens]
    for _ in range(GREEDY):
        inserted = model.towers.insert(prompt.placed)
        rows = model._rows("logits", tokens, model._logits, len(tokens), inserted=inserted)
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt.tokens) :]


def ready(options: argparse.Namespace) -> Iterator[Path]:
    """Folders of models, made if need be."""
    options.models.mkdir(parents=True, exist_ok=True)
    known = {path.name for path in options.models.iterdir() if (path / "reference.npz").exists()}
    if options.make and TOOL.exists():
        listed = subprocess.run(
            [options.make, TOOL, "list"], capture_output=True, text=True, check=True
        ).stdout
        lines = [line for line in listed.splitlines() if ":" in line and not line.startswith(" ")]
        known |= {line.partition(":")[0] for line in lines[1:] if not line.startswith("missing")}
        known |= MADE_HERE
    for name in sorted(known):
        if not any(fnmatch(name, pattern) for pattern in options.names or ("*",)):
            continue
        folder = options.models / name
        if not (folder / "reference.npz").exists():
            size = ["--size", options.size] if options.size else []
            tool = MAKER if name in MADE_HERE else TOOL
            command = [options.make, tool, "make", name, folder, "--seed", str(options.seed), *size]
            if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                Console(stderr=True).print(f"{name}: the tool could not make it")
                continue
            makers = [CHOOSER, FILMER] if name.startswith("qwen") and "vl" in name else [CHOOSER]
            # That maker writes the tokens itself.
            makers = [] if name in MADE_HERE else makers
            for maker in makers:
                made = [options.make, maker, folder]
                subprocess.run(made, stdout=subprocess.DEVNULL, check=False)
        if any((folder / name).exists() for name in ("picture0.png", "sound0.wav")):
            yield folder


def cases(folder: Path) -> Iterator[Case]:
    with np.load(folder / "reference.npz") as arrays:
        there: list[int | str] = [count for count in (1, 2) if f"p{count}.embeds" in arrays]
    there += [VIDEO] if (folder / "video.npz").exists() else []
    for file in FILES:
        if (folder / file).exists():
            yield from (Case(folder, file, count) for count in there)


def cells(found: dict[str, float]) -> tuple[list[str], bool]:
    """Figures as text, in red where one misses its limit, and whether none does."""
    right = {
        "tokens": found["tokens"] == 0,
        "embeds": found["embeds"] <= LIMIT,
        "logits": found["logits"] <= LIMIT,
        "greedy": found["greedy"] == GREEDY,
    }
    texts = {name: f"{found[name]:.0e}" for name in ("embeds", "logits")}
    texts |= {name: f"{found[name]:g}" for name in ("tokens", "greedy")}
    return [t if right[n] else f"[red]{t}[/red]" for n, t in texts.items()], all(right.values())


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.towers", description=__doc__)
    parser.add_argument("names", nargs="*", help="kinds, with * and ?; all without")
    parser.add_argument("--models", type=Path, default=FOLDER, help="where they are, or go")
    parser.add_argument("--make", metavar="PYTHON", help="Python that makes those not there")
    parser.add_argument("--device", default="cpu", help="cpu by default")
    parser.add_argument("--seed", type=int, default=0, help="of those that are made")
    parser.add_argument("--size", help="of the first picture of those that are made")
    options = parser.parse_args(given)
    console = Console()
    table = Table("kind", "file", "pictures", "embeds", "logits", "tokens", "greedy")
    wrong = count = 0
    failed: list[str] = []
    for folder in ready(options):
        for case in cases(folder):
            count += 1
            try:
                with case.load(options.device) as model:
                    texts, right = cells(figures(model, case))
            except wb.BackendError as error:
                texts, right = [f"[red]{type(error).__name__}[/red]"], False
                failed.append(f"{folder.name} {case.file}: {str(error)[:200]}")
            wrong += not right
            table.add_row(folder.name, case.file, str(case.pictures), *texts)
    console.print(table)
    for line in dict.fromkeys(failed):
        console.print(line, markup=False)
    console.print(f"{count - wrong} of {count} are right")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
