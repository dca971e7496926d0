"""Whisper tiny.en's real weights against transformers, on any WAV files.

    python -m tests.engine.speech.real convert CTRANSLATE2_FOLDER FOLDER
    PYTHON -m tests.engine.speech.real judge FOLDER REFERENCE.json FILE.wav...
    python -m tests.engine.speech.real compare FOLDER REFERENCE.json [--device DEVICE]

`convert` makes a Hugging Face folder of the one that ``../shared/tools/real_weights.py get
whisper-tiny.en`` unpacks. `judge` needs a Python with transformers, and records its greedy tokens
with and without timestamps. `compare` prints one line a file, and whether all of it is the same.
"""

import argparse
import json
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WIDTH, LAYERS, HEADS = 384, 4, 6
TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
MOST = 60  # tokens of a file


def read_ctranslate2(path: Path) -> dict[str, np.ndarray]:
    """Tensors of a model.bin: names, shapes, types and values after each other."""
    data, at = path.read_bytes(), 0

    def number(form: str) -> int:
        nonlocal at
        [found] = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return found

    def text() -> str:
        nonlocal at
        size = number("H")
        at += size
        return data[at - size : at].rstrip(b"\0").decode()

    number("I"), text(), number("I")
    made = {}
    for _ in range(number("I")):
        name, shape = text(), [number("I") for _ in range(number("B"))]
        kind, nbytes = TYPES[number("B")], number("I")
        made[name] = np.frombuffer(data, kind, nbytes // np.dtype(kind).itemsize, at).reshape(shape)
        at += nbytes
    return made


def rename(found: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors by their names in transformers; rows of queries, keys and values are split."""
    parts = {
        "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attention/linear_1": ("self_attn.out_proj",),
        "attention/linear_0": ("encoder_attn.q_proj",),
        "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
        "attention/linear_2": ("encoder_attn.out_proj",),
        "self_attention/layer_norm": ("self_attn_layer_norm",),
        "attention/layer_norm": ("encoder_attn_layer_norm",),
        "ffn/layer_norm": ("final_layer_norm",),
        "ffn/linear_0": ("fc1",),
        "ffn/linear_1": ("fc2",),
    }
    ends = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}
    for name, values in found.items():
        side, _, rest = name.partition("/")
        module, _, end = rest.rpartition("/")
        if rest.startswith("layer_") and not rest.startswith("layer_norm"):
            layer, _, inner = module.partition("/")
            targets = parts[inner]
            for target, rows in zip(targets, np.split(values, len(targets)), strict=True):
                if not (target.endswith("k_proj") and end == "bias"):
                    yield f"{side}.layers.{layer[6:]}.{target}.{ends[end]}", rows
        elif module in ("conv1", "conv2", "layer_norm"):
            yield f"{side}.{module}.{ends[end]}", values
        elif rest == "position_encodings/encodings":
            yield f"{side}.embed_positions.weight", values
        elif name == "decoder/embeddings/weight":
            yield "decoder.embed_tokens.weight", values


def convert(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(rename(read_ctranslate2(source / "model.bin")))
    whole = {f"model.{k}": np.ascontiguousarray(v, np.float32) for k, v in tensors.items()}
    save_file(whole, folder / "model.safetensors", {"format": "pt"})
    shutil.copy(source / "tokenizer.json", folder)
    told = json.loads((source / "config.json").read_text(encoding="utf-8"))
    sizes = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 4 * WIDTH}
    ids = {"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 50256}
    config = {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper",
        "d_model": WIDTH, "num_mel_bins": 80, "vocab_size": 51864, "num_hidden_layers": LAYERS,
        **{f"{side}_{n}": size for side in ("encoder", "decoder") for n, size in sizes.items()},
        **ids, "decoder_start_token_id": 50257,
    }  # fmt: skip
    generation = {
        **ids, "decoder_start_token_id": 50257, "is_multilingual": False, "max_length": 448,
        "no_timestamps_token_id": 50362, "prev_sot_token_id": 50360,
        "max_initial_timestamp_index": 50, "suppress_tokens": told["suppress_ids"],
        "begin_suppress_tokens": told["suppress_ids_begin"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(generation))


def judge(folder: Path, reference: Path, files: list[Path]) -> None:
    import torch
    import transformers.utils as utils

    utils.is_torchvision_available = utils.import_utils.is_torchvision_available = lambda: False
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    # By its file: the package may not be installed where transformers is.
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from wgpu_backend.files.media.sounds import load_sound

    torch.set_num_threads(1)
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extractor, made = WhisperFeatureExtractor(), {}
    for file in files:
        samples = load_sound(file)
        padded = np.pad(samples, (0, max(0, 480_000 - len(samples))))[None]
        features = extractor._np_extract_fbank_features(padded, "cpu")
        features = torch.from_numpy(features.astype(np.float32))
        with torch.no_grad():
            plain = model.generate(features, max_new_tokens=MOST)[0].tolist()
            timed = model.generate(
                features, max_new_tokens=MOST, return_timestamps=True, return_segments=True
            )["segments"][0]
        segments = [[float(s["start"]), float(s["end"]), s["tokens"].tolist()] for s in timed]
        made[str(file)] = {"plain": [t for t in plain if t < 50256], "timed": segments}
    reference.write_text(json.dumps(made))


def compare(folder: Path, reference: Path, device: str) -> int:
    from rich.console import Console

    from wgpu_backend.engine import speech

    console, wrong = Console(), 0
    recorded = json.loads(reference.read_text(encoding="utf-8"))
    with speech.load(folder, device=device, exact=True) as model:
        for file, wanted in recorded.items():
            plain = model.transcribe(file, speech.Options(timestamps=False))
            timed = model.transcribe(file).segments
            same = [t for s in plain.segments for t in s.tokens] == wanted["plain"]
            texts = [s.tokens for s in timed] == [tokens for _, _, tokens in wanted["timed"]]
            apart = max(
                (max(abs(s.start - b), abs(s.end - e)) for s, (b, e, _) in
                 zip(timed, wanted["timed"], strict=False)),
                default=0.0,
            )  # fmt: skip
            wrong += not (same and texts and apart <= 0.04)
            console.print(f"{file}: plain {same}, timed {texts}, times {apart:.3f} s apart")
    console.print(f"{len(recorded) - wrong} of {len(recorded)} are the same")
    return bool(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.speech.real", description=__doc__)
    parser.add_argument("act", choices=("convert", "judge", "compare"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    first, second, *files = given.paths
    if given.act == "compare":
        return compare(first, second, given.device)
    if given.act == "judge":
        judge(first, second, files)
    else:
        convert(first, second)
    return 0


if __name__ == "__main__":
    sys.exit(main())
