"""NumPy twins of `wgpu_backend.ops.recurrent.ssm`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def ssm_conv(x: Array, weight: Array) -> Array:
    """Sum of shifted values times taps."""
    taps = weight.shape[1]
    tokens = x.shape[2] - taps + 1
    y = sum(x[:, :, k : k + tokens] * weight[:, k, None] for k in range(taps))
    return np.asarray(y).swapaxes(1, 2)


@twin
def ssm_scan(state: Array, x: Array, dt: Array, a: Array, b: Array, c: Array, ids: Array) -> Array:
    """Scan token by token over all heads at once."""
    heads, parts = x.shape[2], b.shape[2]
    b, c = (np.repeat(m, heads // parts, axis=2) for m in (b, c))
    now = state[np.clip(ids, 0, len(state) - 1)].astype(np.float32)
    steps = np.logaddexp(dt, np.float32(0))
    y = np.zeros(x.shape, np.float32)
    for t in range(x.shape[1]):
        step = steps[:, t, :, None]
        now = now * np.exp(step * a)[:, :, None, :]
        now += (x[:, t] * step)[..., None] * b[:, t, :, None, :]
        y[:, t] = np.einsum("shdn,shn->shd", now, c[:, t])
    return np.concatenate([y.reshape(-1), now.reshape(-1)])
