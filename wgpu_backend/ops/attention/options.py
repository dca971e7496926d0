"""Options of rotary position embedding in GGUF files, and the values derived from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import ModelError, ShapeError
from wgpu_backend.files.gguf.config import Config

SCALINGS = ("linear", "yarn", "longrope", "none")
# Positions of a token where it has several: time, height, width, and one more.
POSITION_AXES = 4
Sectioning = Literal["blocks", "interleaved", "vision"]


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """The mapping from positions to rotation angles.

    Parameters
    ----------
    dims : int
        Values of a head that are rotated, an even number.
    scale : float
        Factor of positions: 1 / the factor by which the context was stretched.
    interleaved : bool
        Pairs are neighbours; otherwise halves.
    original_context : int
        Context the model was trained with, for YaRN and LongRoPE.
    extrapolation : float
        YaRN's mix, 0 (off) to 1.
    attention : float
        Factor of cosine and sine.
    beta_fast, beta_slow : float
        Rotations within the original context at which YaRN's ramp begins and ends.
    truncate : bool
        Whether it begins and ends at whole pairs.
    sections : tuple of four int, or empty
        Pairs that turn by each of a token's four positions; empty where it has one.
    sectioning : str
        How `sections` are laid over the pairs: ``"blocks"`` one after the other, as Qwen2-VL;
        ``"interleaved"`` first, second, third, first …, as Qwen3-VL; ``"vision"`` one after the
        other, each with frequencies of its own from the first on. For vision Ollama's `dim` is half
        of `dims`.
    by_context : bool
        LongRoPE (Ding et al. 2024, §3.2): a model has two sets of `factors` for `frequencies`, and
        takes the second where its context is longer than `original_context`.
    """

    dims: int
    base: float = 10000.0
    scale: float = 1.0
    interleaved: bool = False
    original_context: int = 0
    extrapolation: float = 0.0
    attention: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    sections: tuple[int, ...] = ()
    sectioning: Sectioning = "blocks"
    by_context: bool = False

    def __post_init__(self) -> None:
        if self.dims < 2 or self.dims % 2:
            raise ModelError(f"rope: {self.dims} dimensions, needs an even number of at least 2")
        if not self.base > 0 or not self.scale > 0:
            raise ModelError(f"rope: base {self.base} and scale {self.scale}, need more than 0")
        if self.sections and (len(self.sections) != POSITION_AXES or sum(self.sections) < 1):
            raise ModelError(
                f"rope: sections are {self.sections}, "
                f"needs {POSITION_AXES} that add up to 1 or more"
            )

    @classmethod
    def from_config(cls, config: Config, dims: int, *, interleaved: bool) -> RopeOptions:
        """Read the options of a model file, for heads of `dims` values."""
        kind = config.string("rope.scaling.type", "linear")
        if kind not in SCALINGS:
            known = ", ".join(SCALINGS)
            raise ModelError(
                f"{config.source}: rope.scaling.type is {kind!r}, needs one of {known}"
            )
        factor = config.float("rope.scaling.factor", config.float("rope.scale_linear", 1.0))
        if not factor > 0:
            raise ModelError(f"{config.source}: rope.scaling.factor is {factor}, needs more than 0")
        base = config.float("rope.freq_base", 10000.0)
        if not base > 0:
            raise ModelError(f"{config.source}: rope.freq_base is {base}, needs more than 0")
        dims = config.uint("rope.dimension_count", dims, at_least=2, at_most=dims)
        if dims % 2:
            needs = "an even number"
            raise ModelError(f"{config.source}: rope.dimension_count is {dims}, needs {needs}")
        # A factor of 0 switches YaRN's extrapolation off.
        yarn = kind == "yarn"
        return cls(
            dims=dims,
            base=base,
            scale=1.0 if kind == "none" else 1 / factor,
            interleaved=interleaved,
            original_context=config.uint(
                "rope.scaling.original_context_length", config.uint("context_length", 0)
            ),
            extrapolation=config.float("rope.scaling.yarn_ext_factor", 1.0) if yarn else 0.0,
            attention=config.float("rope.scaling.attn_factor", 1.0),
            beta_fast=config.float("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=config.float("rope.scaling.yarn_beta_slow", 1.0),
            truncate=config.bool("rope.scaling.yarn_truncate", True),
            by_context=kind == "longrope",
        )

    def frequencies(self, factors: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the angle per position of each pair, in radians.

        Source for YaRN: Peng et al. 2023, §3.2 and §3.4.

        Parameters
        ----------
        factors : (dims / 2,) or None
            Divisors, as Llama 3.1 has them.

        Raises
        ------
        ModelError
            Angles would not be finite.
        """
        pairs = self.dims // 2
        if factors is not None and factors.shape != (pairs,):
            raise ShapeError(f"rope: {factors.shape} factors, {pairs} pairs are rotated")
        # Infinities and NaN are refused below, with a message of ours.
        with np.errstate(all="ignore"):
            # Su et al. 2021, "RoFormer", §3.2.2.
            own = self.base ** -self._exponents(pairs)
            own = own if factors is None else own / factors
            mix = self.extrapolation * self._ramp(pairs) if self.extrapolation else 0.0
            found = (own * self.scale * (1 - mix) + own * mix).astype(np.float32)
        if not np.isfinite(found).all():
            raise ModelError(
                f"rope: base {self.base}, scale {self.scale} and the factors give angles that are "
                "not finite"
            )
        return found

    @property
    def magnitude(self) -> float:
        """Return the factor of cosine and sine, including YaRN's temperature."""
        if not self.extrapolation:
            return self.attention
        # The attention temperature of Peng et al. 2023, "YaRN", §3.4.
        return self.attention * (1 + 0.1 * math.log(1 / self.scale))

    @property
    def axes(self) -> NDArray[np.int32]:
        """Return, for each pair, the index of the position that rotates it.

        Returns
        -------
        (dims / 2,), int32
            All zeros without `sections`.
        """
        pair = np.arange(self.dims // 2)
        if not self.sections:
            return np.zeros(len(pair), np.int32)
        place = pair % sum(self.sections)
        if self.sectioning == "interleaved":
            # Time, height and width take turns, until one has all of its pairs.
            of_three = place % 3
            inside = place < 3 * np.array(self.sections)[of_three]
            return np.where(inside, of_three, POSITION_AXES - 1).astype(np.int32)
        return np.searchsorted(np.cumsum(self.sections), place, side="right").astype(np.int32)

    def _exponents(self, pairs: int) -> NDArray[np.float64]:
        """Return the negative logarithm of each pair's frequency, to `base`."""
        pair = np.arange(pairs, dtype=np.float64)
        if self.sectioning != "vision" or not self.sections:
            return pair / pairs
        begins = np.cumsum((0, *self.sections[:-1]))
        # Each section begins with the fastest turn again.
        return 2 * (pair % sum(self.sections) - begins[self.axes]) / pairs

    def _ramp(self, pairs: int) -> NDArray[np.float64]:
        """Return 1 for pairs that rotate fast, 0 for slow pairs, and a ramp in between."""
        low, high = self._find_pair(self.beta_fast), self._find_pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(0.0, low), min(self.dims - 1.0, high)
        # 0.001 as in llama.cpp: both ends may be the same pair.
        steps = (np.arange(pairs) - low) / max(0.001, high - low)
        return np.clip(1 - steps, 0.0, 1.0).astype(np.float64)

    def _find_pair(self, rotations: float) -> float:
        """Return the (fractional) pair that turns this often within the original context."""
        # Peng et al. 2023, "YaRN", §3.2.
        turns = self.original_context / (rotations * 2 * math.pi)
        return self.dims * math.log(max(turns, 1e-9)) / (2 * math.log(self.base))
