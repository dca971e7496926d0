"""The chain of samplers for given options, as llama.cpp would build it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wgpu_backend.errors import OptionError
from wgpu_backend.ops.sampling.host.dry import Breakers, Dry
from wgpu_backend.ops.sampling.host.mirostat import XTC, Mirostat, MirostatV2
from wgpu_backend.ops.sampling.host.options import SAMPLERS, SamplingOptions
from wgpu_backend.ops.sampling.host.steps import (
    Dist,
    MinP,
    Penalties,
    SamplerStep,
    Temp,
    TempExt,
    TopK,
    TopNSigma,
    TopP,
    Typical,
)


def build_chain(
    options: SamplingOptions, seed: int, vocabulary: int, breakers: Breakers | None
) -> list[SamplerStep]:
    """Build the samplers of options, in their order; the last one chooses.

    Parameters
    ----------
    vocabulary : int
        Tokens that there are.
    breakers : Breakers or None
        Those of DRY, where that is on.

    Raises
    ------
    OptionError
        DRY is on, and there are none.
    """
    if options.mirostat:
        how = seed, options.mirostat_tau, options.mirostat_eta
        last = MirostatV2(*how) if options.mirostat == 2 else Mirostat(vocabulary, *how)
        return [Temp(options.temperature), last]
    if options.dries and breakers is None:
        raise OptionError(
            "dry_multiplier: DRY needs a model's vocabulary, in which its breakers are looked up"
        )
    make = _makers(options, seed, breakers or {})
    order = SAMPLERS if options.samplers is None else options.samplers
    return [*(make[name]() for name in order if options.applies(name)), Dist(seed)]


def _makers(
    options: SamplingOptions, seed: int, breakers: Breakers
) -> Mapping[str, Callable[[], SamplerStep]]:
    """Return a constructor for each sampler, by name."""
    keep = options.min_keep
    return {
        "penalties": lambda: Penalties(
            options.repeat_last_n,
            options.repeat_penalty,
            options.frequency_penalty,
            options.presence_penalty,
        ),
        "dry": lambda: Dry(
            options.dry_multiplier,
            options.dry_base,
            options.dry_allowed_length,
            options.dry_penalty_last_n,
            breakers,
        ),
        "top_n_sigma": lambda: TopNSigma(options.top_n_sigma),
        "top_k": lambda: TopK(options.top_k),
        "typ_p": lambda: Typical(options.typical_p, keep),
        "top_p": lambda: TopP(options.top_p, keep),
        "min_p": lambda: MinP(options.min_p, keep),
        "xtc": lambda: XTC(options.xtc_probability, options.xtc_threshold, keep, seed),
        "temperature": lambda: TempExt(
            options.temperature, options.dynatemp_range, options.dynatemp_exponent
        ),
    }
