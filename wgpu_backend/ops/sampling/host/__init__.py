"""Sampling on the host: options, the NumPy sampler, and the plan of what runs on the device.

::

    logits ─ penalise ─ top_k ─ typical_p ─ top_p ─ min_p ─ temperature ─ pick ─▶ token
    float32 ──────────────────────────────▶ ◀──── integers (`weights`) ─────▶

The order is llama.cpp's. Samplers beyond these, or another order, are a chain of steps on the host
(`chain`, `steps`), each of which changes which tokens may be chosen. In the picture everything
after `top_k` compares and adds integers only, so a device that does the same arrives at the same
token, to the last bit. It depends on NumPy alone, not on a device.
"""

from __future__ import annotations

from wgpu_backend.ops.sampling.host.candidates import Candidates, largest
from wgpu_backend.ops.sampling.host.dry import Breakers, Spelling
from wgpu_backend.ops.sampling.host.options import SamplingOptions
from wgpu_backend.ops.sampling.host.plan import Plan, plan
from wgpu_backend.ops.sampling.host.sampler import Sampler
from wgpu_backend.ops.sampling.host.sampling_params import SamplingParams, make_sampling_params

__all__ = [
    "Breakers",
    "Candidates",
    "Plan",
    "Sampler",
    "SamplingOptions",
    "SamplingParams",
    "Spelling",
    "largest",
    "make_sampling_params",
    "plan",
]
