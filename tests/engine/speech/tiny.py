"""A tiny random Whisper as a Hugging Face folder, and a sound for it.

With transformers installed, this records what it answers::

    python -m tests.engine.speech.tiny tests/data/whisper.npz
"""

import json
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WIDTH, HEADS, LAYERS, CONTEXT, BANDS, STATES = 16, 2, 2, 48, 80, 1500
BYTES = 256
CONTROL = [
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>",
    "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
]  # fmt: skip
END, START, EN, DE, TRANSLATE, TRANSCRIBE, _, PREVIOUS, SILENT, PLAIN = range(BYTES, BYTES + 10)
FIRST = PLAIN + 1  # timestamp
ROWS = FIRST + 1501
SEED = 11
FORCED = [START, EN, TRANSCRIBE, PLAIN, 72, 105]
CONFIG = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "activation_function": "gelu",
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": 1,
    "num_hidden_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 4 * WIDTH,
    "decoder_ffn_dim": 4 * WIDTH,
    "max_source_positions": STATES,
    "max_target_positions": CONTEXT,
    "num_mel_bins": BANDS,
    "vocab_size": ROWS,
    "scale_embedding": False,
    "decoder_start_token_id": START,
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
}
GENERATION = {
    "is_multilingual": True,
    "suppress_tokens": [34, 35, START, TRANSLATE, TRANSCRIBE, PREVIOUS, SILENT],
    "begin_suppress_tokens": [32, END],
    "no_timestamps_token_id": PLAIN,
    "prev_sot_token_id": PREVIOUS,
    "max_initial_timestamp_index": 50,
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "pad_token_id": END,
    "bos_token_id": END,
    "max_length": CONTEXT,
}


def byte_texts() -> list[str]:
    """GPT-2's spelling of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


def tokenizer() -> dict:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    stamps = [f"<|{i * 0.02:.2f}|>" for i in range(1501)]
    added = [(text, True) for text in CONTROL] + [(text, False) for text in stamps]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": BYTES + i, "content": text, "special": special, **flags}
            for i, (text, special) in enumerate(added)
        ],
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
        },
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True,
        },
        "model": {
            "type": "BPE", "merges": [], "vocab": {t: i for i, t in enumerate(byte_texts())},
        },
    }  # fmt: skip


def weights(seed: int = SEED) -> dict[str, np.ndarray]:
    """Random weights; rows of the embedding are far apart, so that the best token is clear."""
    generator = np.random.default_rng(seed)

    def make(*shape: int, scale: float = 0.0) -> np.ndarray:
        scale = scale or (shape[-1] * (shape[-2] if len(shape) > 2 else 1)) ** -0.5
        return (scale * generator.standard_normal(shape)).astype(np.float32)

    def linear(name: str, rows: int, cols: int, bias: bool = True) -> dict[str, np.ndarray]:
        made = {f"{name}.weight": make(rows, cols)}
        return made | ({f"{name}.bias": make(rows, scale=0.1)} if bias else {})

    def norm(name: str) -> dict[str, np.ndarray]:
        return {
            f"{name}.weight": 1 + make(WIDTH, scale=0.1),
            f"{name}.bias": make(WIDTH, scale=0.1),
        }

    def attention(name: str) -> dict[str, np.ndarray]:
        parts = (("q_proj", True), ("k_proj", False), ("v_proj", True), ("out_proj", True))
        made = {}
        for part, bias in parts:
            made |= linear(f"{name}.{part}", WIDTH, WIDTH, bias)
        return made | norm(f"{name}_layer_norm")

    def layer(name: str, crossed: bool) -> dict[str, np.ndarray]:
        made = attention(f"{name}.self_attn")
        made |= attention(f"{name}.encoder_attn") if crossed else {}
        made |= linear(f"{name}.fc1", 4 * WIDTH, WIDTH) | linear(f"{name}.fc2", WIDTH, 4 * WIDTH)
        return made | norm(f"{name}.final_layer_norm")

    made = {}
    for i, inputs in ((1, BANDS), (2, WIDTH)):
        made[f"encoder.conv{i}.weight"] = make(WIDTH, inputs, 3)
        made[f"encoder.conv{i}.bias"] = make(WIDTH, scale=0.1)
    made["encoder.embed_positions.weight"] = make(STATES, WIDTH, scale=0.2)
    made["decoder.embed_positions.weight"] = make(CONTEXT, WIDTH, scale=2.0)
    made["decoder.embed_tokens.weight"] = make(ROWS, WIDTH, scale=1.0)
    for i in range(LAYERS):
        made |= layer(f"encoder.layers.{i}", False)
    made |= layer("decoder.layers.0", True)
    made |= norm("encoder.layer_norm") | norm("decoder.layer_norm")
    return {f"model.{name}": values for name, values in made.items()}


def make_folder(folder: Path, **changes: object) -> Path:
    """Write the model into a folder; `changes` replace keys of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return folder


def sound(seconds: float = 3.0) -> np.ndarray:
    """A rising tone, with gaps: (samples,) at 16 kHz."""
    t = np.arange(int(16_000 * seconds)) / 16_000
    tone = 0.4 * np.sin(2 * np.pi * (200 + 150 * t) * t) * (np.sin(7 * t) > 0)
    return (tone + 0.02 * np.sin(2 * np.pi * 4000 * t)).astype(np.float32)


def write_sound(path: Path, seconds: float = 1.0) -> Path:
    """Write `sound` as a WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((sound(seconds) * 32767).astype("<i2").tobytes())
    return path


def record(path: str) -> None:
    import torch
    import transformers.utils as utils

    utils.is_torchvision_available = utils.import_utils.is_torchvision_available = lambda: False
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    with tempfile.TemporaryDirectory() as folder:
        model = WhisperForConditionalGeneration.from_pretrained(make_folder(Path(folder))).eval()
    samples = np.pad(sound(), (0, 480_000 - len(sound())))
    features = WhisperFeatureExtractor()._np_extract_fbank_features(samples[None], "cpu")
    features = torch.from_numpy(features.astype(np.float32))
    with torch.no_grad():
        states = model.model.encoder(features).last_hidden_state[0].numpy()
        forced = torch.tensor([FORCED])
        logits = model(input_features=features, decoder_input_ids=forced).logits[0].numpy()
        found = {
            name: model.generate(
                features, language="en", task=task, return_timestamps=timed, max_new_tokens=24
            )[0].numpy()[:24]
            for name, task, timed in (
                ("plain", "transcribe", False),
                ("timed", "transcribe", True),
                ("translated", "translate", False),
            )
        }
        language = model.detect_language(features)[0].item()
    rows = np.arange(0, STATES, 60)
    np.savez_compressed(
        path, rows=rows, states=states[rows], logits=logits[:, ::7], language=language, **found
    )


if __name__ == "__main__":
    record(sys.argv[1])
