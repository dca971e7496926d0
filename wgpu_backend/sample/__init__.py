"""Choosing the next token from logits: options, the NumPy sampler, and where it can run.

::

    logits ─ penalise ─ top_k ─ typical_p ─ top_p ─ min_p ─ temperature ─ pick ─▶ token
    float32 ──────────────────────────────▶ ◀──── integers (`weights`) ─────▶

The order is llama.cpp's. Samplers beyond these, or another order, are a chain of steps on the host
(`chain`, `steps`), each of which changes which tokens may be chosen. In the picture everything
after `top_k` compares and adds integers only, so a device that does the same arrives at the same
token, to the last bit. This floor knows NumPy and no device.
"""

from __future__ import annotations

from wgpu_backend.sample.candidates import Candidates, largest
from wgpu_backend.sample.dry import Breakers, Spelling
from wgpu_backend.sample.options import SamplingOptions
from wgpu_backend.sample.plan import Plan, plan
from wgpu_backend.sample.sampler import Sampler
from wgpu_backend.sample.sampling_params import SamplingParams, sampling_params_of

__all__ = [
    "Breakers",
    "Candidates",
    "Plan",
    "Sampler",
    "SamplingOptions",
    "SamplingParams",
    "Spelling",
    "largest",
    "plan",
    "sampling_params_of",
]
