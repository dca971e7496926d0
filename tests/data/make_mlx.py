"""Makes ``tests/data/mlx_qwen3``: a tiny random Qwen3 in MLX's format, with mlx-lm's answers.

In an environment with ``mlx[cpu]`` and ``mlx-lm``, from the root of the repository::

    mlx/bin/python tests/data/make_mlx.py

The weights are NumPy's random numbers; ``mlx_lm.convert`` rounds them to four bits.
"""

import json
import tempfile
import zlib
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm import convert, load
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).with_name("mlx_qwen3")
IDS = [3, 60, 17, 99, 5, 44, 81, 2, 120, 63, 7]
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
CONFIG = SIZES | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 0,
    "hidden_act": "silu",
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of all weights by their published names."""
    width, inner, head = (SIZES[n] for n in ("hidden_size", "intermediate_size", "head_dim"))
    queries, keys = (SIZES[n] * head for n in ("num_attention_heads", "num_key_value_heads"))
    vocabulary = (SIZES["vocab_size"], width)
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": vocabulary,
        "model.norm.weight": (width,),
        "lm_head.weight": vocabulary,
    }
    layer = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    for i in range(SIZES["num_hidden_layers"]):
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return found


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random weight that depends on its name alone."""
    rng = np.random.default_rng([1, zlib.crc32(name.encode())])
    if len(shape) == 1:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return (rng.standard_normal(shape) * 1.2 / np.sqrt(shape[1])).astype(np.float32)


def main() -> None:
    """Write the folder."""
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "source", Path(folder) / "made"
        source.mkdir()
        (source / "config.json").write_text(json.dumps(CONFIG))
        weights = {name: drawn(name, shape) for name, shape in shapes().items()}
        save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
        letters = {chr(i) if 32 < i < 127 else f"<{i}>": i for i in range(128)}
        tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<0>").save_pretrained(source)
        convert(str(source), str(made), quantize=True, q_group_size=32, q_bits=4, dtype="float32")
        model, _ = load(str(made))
        ids = list(IDS)
        logits = np.array(model(mx.array([ids])))[0]
        for _ in range(16):
            ids.append(int(mx.argmax(model(mx.array([ids]))[0, -1]).item()))
        FOLDER.mkdir(exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            (FOLDER / name).write_bytes((made / name).read_bytes())
        np.savez(FOLDER / "answers.npz", ids=IDS, logits=logits, greedy=ids[len(IDS) :])


if __name__ == "__main__":
    main()
