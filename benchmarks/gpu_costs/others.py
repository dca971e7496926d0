"""Graphs of ops that Llama lacks: experts, states, latent attention, masks, convolutions.

Sizes are those of published models. The graphs of the self-test are included, one for each fusion
rule, so that each op that rules produce is compiled at least once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import vision
from wgpu_backend.dtypes import I32, Q4_0, Q4_K, Q6_K, U32, DType, named
from wgpu_backend.files.gguf.parts import tower_part
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.calibration.self_test import fused_cases
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.ops.attention.paged import Scores
from wgpu_backend.ops.sampling.masking import mask_logits

OTHERS = "others"  # in the place of a model's name
TOKENS = (1, 64)  # of a decode step and of a prompt
F16 = named("f16")
Build = Callable[[Context], Any]


def builds() -> Mapping[str, Build]:
    """List the graphs by name."""
    named_ones = {f"{name}{n}": partial(build, tokens=n) for name, build in SIZED for n in TOKENS}
    rules: dict[str, Build] = {}
    for rule, _, make in fused_cases():
        again = sum(name.partition(",")[0] == f"rule {rule}" for name in rules)
        rules[f"rule {rule}{f', {again + 1}' if again else ''}"] = partial(_of_rule, make=make)
    return {**named_ones, **FIXED, **rules}


def towers() -> Mapping[str, Build]:
    """List graphs of vision towers, two layers each, which only a name chooses."""
    return {f"tower {name}": partial(_tower, name=name) for name in vision.TOWERS}


def _tower(context: Context, *, name: str) -> Tensor:
    """Build a tower of published sizes, see `benchmarks.vision`."""
    sizes = vision.TOWERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = vision.write_tower(Path(folder) / "tower.gguf", sizes, 2, 2048, full=False)
        backend = Backend(tower_part(open_gguf(path)), context._executor)  # pyright: ignore
        backend.load()
        tower = vision.make_tower(backend)
        media = tower.prepare(np.zeros((sizes.side, sizes.side, 3), np.uint8))
        inputs = {n: context.input(n, a.shape, a.dtype) for n, a in media.arrays.items()}
        return tower.encode(context, inputs)


def _of_rule(context: Context, *, make: Callable[[Context, np.random.Generator], Tensor]) -> Tensor:
    return make(context, np.random.default_rng(0))


def _weight(context: Context, dtype: DType, *shape: int) -> Tensor:
    """Make a weight without storage."""
    spec = Spec.dense(shape, dtype)
    return leaf(spec, context._executor.weight(spec, b"", "weight"))  # pyright: ignore


def _experts(context: Context, *, tokens: int, dtype: DType = Q6_K) -> Tensor:
    """Build experts of Qwen3-30B-A3B: 8 of 128, gated, summed with shares and a residual."""
    hidden, inner, count, used = 2048, 768, 128, 8
    ids = context.zeros(tokens, used, dtype=I32)
    both = _weight(context, Q4_K, count, 2 * inner, hidden)
    gate, up = both.mulmat_id(context.zeros(tokens, 1, hidden), ids).chunk(2, inner)
    down = _weight(context, dtype, count, hidden, inner).mulmat_id(gate.swiglu(up), ids)
    shared = down * context.zeros(tokens, used, 1)
    return context.zeros(tokens, hidden).add(shared.sum(1))


def _routed(context: Context, *, tokens: int) -> Tensor:
    """Build the routing to 8 of 128 experts, with their shares."""
    scores = context.zeros(tokens, 128).softmax()
    ids = scores.top_k(8)
    shares = scores.reshape(tokens, 128, 1).rows(ids).reshape(tokens, 8)
    return (shares / shares.sum_rows()).concat(ids.cast(dtype=named("f32")), axis=1)


def _latent(context: Context, *, tokens: int) -> Tensor:
    """Build attention of DeepSeek V2 Lite: 16 heads of 576 share one key and its 512 values."""
    table = context.zeros(tokens, dtype=I32).rope_table(context.zeros(32))
    wide = context.zeros(tokens, 576)
    latents = wide.slice(1, 0, 512).rms_norm(context.zeros(512), eps=1e-6).reshape(tokens, 1, 512)
    turned = wide.slice(1, 512, 576).reshape(tokens, 1, 64).rope(table)
    slots = context.zeros(tokens, dtype=I32)
    keys = latents.concat(turned, axis=2).reshape(tokens, 576)
    cache = context.zeros(4096, 576, dtype=F16).set_rows(keys, slots)
    return context.zeros(tokens, 16, 576).paged_attention(
        cache,
        cache,
        context.zeros(tokens, dtype=I32),
        context.zeros(tokens, dtype=I32),
        context.zeros(1, 8, dtype=I32),
        scores=Scores(block=512, scale=0.1, kv_heads=1, v_cols=512),
    )


def _delta(context: Context, *, tokens: int) -> Tensor:
    """Build the delta rule of Qwen3-Next: 32 heads of 128 by 128, 16 of keys."""
    q, k = context.zeros(tokens, 16, 128), context.zeros(tokens, 16, 128)
    v, decay = context.zeros(tokens, 32, 128), context.zeros(tokens, 32, 1)
    beta, state = context.zeros(tokens, 32), context.zeros(1, 32, 128, 128)
    return q.gated_delta(k, v, decay, beta, state, _runs(context), unit=1e-6, logits=True)


def _channel_decay(context: Context, *, tokens: int) -> Tensor:
    """Build the delta rule of Kimi Linear, with a decay for each channel."""
    q, k, v, decay = (context.zeros(tokens, 32, 128) for _ in range(4))
    beta, state = context.zeros(tokens, 32), context.zeros(1, 32, 128, 128)
    return q.gated_delta(k, v, decay, beta, state, _runs(context), unit=1e-6)


def _rwkv6(context: Context, *, tokens: int) -> Tensor:
    """Build RWKV 6 1.6B: 32 heads of 64."""
    q, k, v, decay = (context.zeros(tokens, 32, 64) for _ in range(4))
    state = context.zeros(1, 32, 64, 64)
    return q.gated_linear(k, v, decay, state, _runs(context), context.zeros(32, 64))


def _rwkv7(context: Context, *, tokens: int) -> Tensor:
    """Build RWKV 7 1.5B: 32 heads of 64."""
    r, k, v, decay = (context.zeros(tokens, 32, 64) for _ in range(4))
    both, state = context.zeros(2, tokens, 32, 64), context.zeros(1, 32, 64, 64)
    return r.wkv7(k, v, decay, both, state, _runs(context))


def _mamba(context: Context, *, tokens: int) -> Tensor:
    """Build Falcon Mamba 7B: 8,192 channels of 16 states."""
    x, dt = context.zeros(tokens, 1, 8192), context.zeros(tokens, 1, 8192)
    b, c = context.zeros(tokens, 1, 16), context.zeros(tokens, 1, 16)
    state = context.zeros(1, 1, 16, 8192)
    return x.selective_scan(dt, context.zeros(1, 8192, 16), b, c, state, _runs(context))


def _mamba2(context: Context, *, tokens: int) -> Tensor:
    """Build Granite 4.0 H Tiny: 48 heads of 64 with 128 states."""
    x, dt = context.zeros(tokens, 48, 64), context.zeros(tokens, 48, 1)
    b, c = context.zeros(tokens, 1, 128), context.zeros(tokens, 1, 128)
    state = context.zeros(1, 48, 128, 64)
    return x.selective_scan(dt, context.zeros(48, 1, 1), b, c, state, _runs(context))


def _short_conv(context: Context, *, tokens: int) -> Tensor:
    """Build the short convolution of Qwen3-Next: 8,192 channels by four taps, through SiLU."""
    weight, state = context.zeros(8192, 4), context.zeros(1, 3, 8192)
    return context.zeros(tokens, 8192).short_conv(weight, state, _runs(context), silu=True)


def _token_shift(context: Context, *, tokens: int) -> Tensor:
    """Build the token shift of RWKV 7 1.5B: 2,048 channels."""
    return context.zeros(tokens, 2048).token_shift(context.zeros(1, 1, 2048), _runs(context))


def _runs(context: Context) -> Tensor:
    return context.zeros(1, 4, dtype=I32)


def _masked(context: Context) -> Any:  # noqa: ANN401
    """Build a grammar's mask over logits of Llama 3's vocabulary."""
    return mask_logits(context.zeros(1, 128256), context.zeros(1, 4008, dtype=U32))


def _convolved(context: Context, *, size: int, channels: int, extent: int = 3) -> Tensor:
    """Build a convolution of Stable Diffusion's UNet."""
    x = context.zeros(1, size, size, channels)
    w = context.zeros(channels, extent, extent, channels)
    return x.conv2d(w, paddings=(extent // 2, extent // 2))


def _patches(context: Context) -> Tensor:
    """Build an image model's first convolution: 3 channels, which tiles do not support."""
    x, w = context.zeros(1, 512, 512, 3), context.zeros(128, 3, 3, 3)
    return x.conv2d(w, paddings=(1, 1))


SIZED = (
    ("experts", _experts),
    ("routed", _routed),
    ("latent", _latent),
    ("delta", _delta),
    ("channel decay", _channel_decay),
    ("rwkv6", _rwkv6),
    ("rwkv7", _rwkv7),
    ("mamba", _mamba),
    ("mamba2", _mamba2),
    ("short conv", _short_conv),
    ("token shift", _token_shift),
)
FIXED: Mapping[str, Build] = {
    "experts512": partial(_experts, tokens=512),
    "experts in Q4_0": partial(_experts, tokens=1, dtype=Q4_0),
    "masked": _masked,
    "conv 64×64×320": partial(_convolved, size=64, channels=320),
    "conv 512×512×128": partial(_convolved, size=512, channels=128),
    "conv 1×1": partial(_convolved, size=64, channels=320, extent=1),
    "conv of 3 channels": _patches,
}
