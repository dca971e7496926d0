"""Define an architecture outside the package: write a file of it, load it and check its values.

::

    $ python examples/custom_model.py
    story-parallel.gguf: 2 layers, 64 wide, 257 tokens, on llvmpipe (LLVM 15.0.6, 256 bits)
    logits of 12 tokens against NumPy: NMSE 8.8e-14
    the same tokens greedily on both sides: [202, 20, 194, 51, 221, 16, 102, 201]

"story-parallel" is Llama with parallel attention and feed-forward after one norm, as in GPT-J
and PaLM (Chowdhery et al. 2022, §2). The weights are random, so the text would be noise. A device
as the only argument (``cpu``) runs it there.
"""

import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

import wgpu_backend as wb

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FEED_FORWARD, EPS = 2, 64, 4, 2, 16, 128, 1e-5


class ParallelLayer(wb.nn.DecoderLayer):
    """A layer with parallel branches: ``x + attention(norm(x)) + mlp(norm(x))``."""

    norm: wb.nn.RMSNorm = wb.weight("attn_norm", "width")

    def __init__(self, config: wb.nn.LayerConfig, rope: wb.nn.Rotary) -> None:
        self.width, self.last = config.width, config.last
        self.mixer = wb.nn.SelfAttention(config, rope)
        self.mlp = wb.nn.MLP(config)

    def forward(self, x: wb.Tensor, batch: wb.Batch) -> wb.Tensor:
        """Run one block; after the last block's attention, only requested rows continue."""
        normed = self.norm(x, EPS)
        y = self.mixer.forward(normed, batch)
        if self.last:
            x, y, normed = (
                batch.select_outputs(x),
                batch.select_outputs(y),
                batch.select_outputs(normed),
            )
        return self.mlp.forward(normed, self.mixer.project(y, x))


@wb.architecture("story-parallel")
class StoryParallel(wb.Decoder):
    """A Llama of parallel layers; everything else is inherited from `Decoder`."""

    rope_interleaved = True

    def layer(self, config: wb.nn.LayerConfig) -> ParallelLayer:
        """Make a layer; its weights come later."""
        return ParallelLayer(config, self.rope)


def main(device: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "story-parallel.gguf"
        weights = write(path)
        with wb.load(path, device=device, kv_dtype="f32") as model:
            tokens = list(b"Once upon a ")
            got, wanted = model.logits(tokens), forward(weights, tokens)
            greedy = wb.SamplingOptions(temperature=0)
            made = list(model.tokens(tokens, greedy, num_predict=8))
            print(
                f"{path.name}: {LAYERS} layers, {WIDTH} wide, {model.vocabulary} tokens,", end=" "
            )
            print(f"on {model.device.name}")
    error = np.sum((got - wanted) ** 2) / np.sum(wanted**2)
    print(f"logits of {len(tokens)} tokens against NumPy: NMSE {error:.1e}")
    same = "the same" if made == continued(weights, tokens, 8) else "DIFFERENT"
    print(f"{same} tokens greedily on both sides: {made}")


def write(path: Path) -> dict[str, np.ndarray]:
    """Write a model with random weights, and return the weights."""
    words = byte_alphabet()
    writer = gguf.GGUFWriter(path, "story-parallel")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*words, "he"])
    writer.add_token_merges(["h e"])
    weights = random_weights(len(words) + 1)
    for name, values in weights.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def byte_alphabet() -> list[str]:
    """Map each byte to a character: its own if it is printable, else the next unused one."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]


def random_weights(vocabulary: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, cols: int) -> np.ndarray:
        return rng.normal(0, cols**-0.5, (rows, cols)).astype(np.float32)

    weights = {
        "token_embd.weight": matrix(vocabulary, WIDTH),
        "output_norm.weight": np.ones(WIDTH, np.float32),
    }
    for i in range(LAYERS):
        weights |= {
            f"blk.{i}.attn_norm.weight": rng.uniform(0.5, 1.5, WIDTH).astype(np.float32),
            f"blk.{i}.attn_q.weight": matrix(HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_k.weight": matrix(KV_HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_v.weight": matrix(KV_HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_output.weight": matrix(WIDTH, HEADS * HEAD),
            f"blk.{i}.ffn_gate.weight": matrix(FEED_FORWARD, WIDTH),
            f"blk.{i}.ffn_up.weight": matrix(FEED_FORWARD, WIDTH),
            f"blk.{i}.ffn_down.weight": matrix(WIDTH, FEED_FORWARD),
        }
    return weights


def forward(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Compute the logits with NumPy in double precision, as a second implementation."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    x = w["token_embd.weight"][tokens]
    for i in range(LAYERS):
        n = rms_norm(x) * w[f"blk.{i}.attn_norm.weight"]
        gate, up, down, *qkvo = (
            w[f"blk.{i}.{name}.weight"].T
            for name in (
                "ffn_gate",
                "ffn_up",
                "ffn_down",
                "attn_q",
                "attn_k",
                "attn_v",
                "attn_output",
            )
        )
        gated = n @ gate
        x = x + attention(n, *qkvo) + (gated / (1 + np.exp(-gated)) * (n @ up)) @ down
    return rms_norm(x) @ w["token_embd.weight"].T


def rms_norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS)


def attention(
    n: np.ndarray, wq: np.ndarray, wk: np.ndarray, wv: np.ndarray, wo: np.ndarray
) -> np.ndarray:
    tokens = len(n)
    q = rotated((n @ wq).reshape(tokens, HEADS, HEAD))
    k = rotated((n @ wk).reshape(tokens, KV_HEADS, HEAD)).repeat(HEADS // KV_HEADS, axis=1)
    v = (n @ wv).reshape(tokens, KV_HEADS, HEAD).repeat(HEADS // KV_HEADS, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD)
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    y = np.einsum("hqk,khd->qhd", e / e.sum(axis=-1, keepdims=True), v)
    return y.reshape(tokens, -1) @ wo


def rotated(x: np.ndarray) -> np.ndarray:
    """Rotate neighbouring values as complex numbers by their position."""
    pairs = x[..., ::2] + 1j * x[..., 1::2]
    angles = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(0, HEAD, 2) / HEAD)
    turned = pairs * np.exp(1j * angles)[:, None, :]
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def continued(weights: dict[str, np.ndarray], tokens: list[int], count: int) -> list[int]:
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(forward(weights, tokens)[-1].argmax()))
    return tokens[-count:]


if __name__ == "__main__":
    main(*sys.argv[1:])
