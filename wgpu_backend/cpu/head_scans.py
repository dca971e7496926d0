"""NumPy twins of `wgpu_backend.ops.recurrent.head_scans`: all heads of a token at once."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.activation import sigmoid
from wgpu_backend.cpu.runs import scan_runs
from wgpu_backend.cpu.twin import Array, twin


def _for_heads(vectors: Array, heads: int) -> Array:
    """(tokens, groups, keys), for as many heads; neighbours share one."""
    return np.repeat(vectors, heads // vectors.shape[1], axis=1)


def _read(state: Array, query: Array) -> Array:
    return np.einsum("hkv,hk->hv", state, query)


def _zeros(v: Array) -> Array:
    return np.zeros(v.shape, np.float32)


@twin
def gated_delta(
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    beta: Array,
    state: Array,
    runs: Array,
    rate: Array | None = None,
    bias: Array | None = None,
    *,
    scale: float = 1.0,
    tiled: bool = False,
    unit: float | None = None,
    logits: bool = False,
) -> Array:
    """Gated delta rule."""
    heads, beta = v.shape[1], beta.reshape(len(v), -1)
    if unit is not None:
        q, k = (a / np.sqrt(np.sum(a * a, -1, keepdims=True) + np.float32(unit)) for a in (q, k))
    if logits:
        beta = sigmoid(beta)
    if rate is not None and bias is not None:
        decay = rate * np.logaddexp(decay + bias, np.float32(0))
    q = q * np.float32(scale)
    if tiled:
        q, k = (np.tile(a, (1, heads // a.shape[1], 1)) for a in (q, k))
    else:
        q, k = (_for_heads(a, heads) for a in (q, k))
    factors = np.exp(decay)

    def step(token: int, now: Array) -> tuple[Array, Array]:
        now = now * factors[token][..., None]
        change = beta[token][:, None] * (v[token] - _read(now, k[token]))
        now += k[token][..., None] * change[:, None]
        return _read(now, q[token]), now

    return scan_runs(state, runs, _zeros(v), step)


@twin
def gated_linear(
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    state: Array,
    runs: Array,
    bonus: Array | None = None,
    *,
    scale: float = 1.0,
) -> Array:
    """Gated linear attention, or RWKV-6's with a bonus."""
    q, k = (_for_heads(a, v.shape[1]) for a in (q * np.float32(scale), k))
    factors = np.exp(decay)

    def step(token: int, now: Array) -> tuple[Array, Array]:
        added = k[token][..., None] * v[token][:, None]
        after = now * factors[token][..., None] + added
        seen = after if bonus is None else now + bonus[..., None] * added
        return _read(seen, q[token]), after

    return scan_runs(state, runs, _zeros(v), step)


@twin
def wkv7(
    r: Array, k: Array, v: Array, decay: Array, delta: Array, state: Array, runs: Array
) -> Array:
    """Generalised delta rule."""
    factors, (a, b) = np.exp(decay), delta

    def step(token: int, now: Array) -> tuple[Array, Array]:
        taken = b[token][..., None] * _read(now, a[token])[:, None]
        now = now * factors[token][..., None] + taken + k[token][..., None] * v[token][:, None]
        return _read(now, r[token]), now

    return scan_runs(state, runs, _zeros(v), step)


@twin
def selective_scan(
    x: Array, dt: Array, a: Array, b: Array, c: Array, state: Array, runs: Array
) -> Array:
    """Scan of a state space model."""
    b, c = (_for_heads(m, x.shape[1]) for m in (b, c))
    steps, rates = np.logaddexp(dt, np.float32(0)), a.swapaxes(1, 2)

    def step(token: int, now: Array) -> tuple[Array, Array]:
        decayed = now * np.exp(steps[token][:, None] * rates)
        now = decayed + b[token][..., None] * (x[token] * steps[token])[:, None]
        return _read(now, c[token]), now

    return scan_runs(state, runs, _zeros(x), step)
