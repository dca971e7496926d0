"""Options of attention over a paged cache: visibility of positions, and how scores are made."""

from __future__ import annotations

from dataclasses import dataclass

from wgpu_backend.errors import ShapeError
from wgpu_backend.ops.check import require


@dataclass(frozen=True, slots=True)
class Temperature:
    """A query factor by position p: ``1 + factor · log(1 + ⌊(p + offset) / length⌋)``.

    Source: Nakanishi 2025, "Scalable-Softmax", §3, as Llama 4 and Ministral 3 have it.

    Parameters
    ----------
    length : int
        Positions of a step, 1 or more.
    offset : int
        Added to positions; Llama 4 has 1.
    """

    factor: float
    length: int
    offset: int = 0

    def __post_init__(self) -> None:
        require(
            self.length > 0 and self.offset >= 0,
            ShapeError,
            f"attention: a temperature of steps of {self.length} positions, offset {self.offset}; "
            "needs 1 or more, and 0 or more",
        )


@dataclass(frozen=True, slots=True)
class Scores:
    """The visibility and score options of one attention; see `attention`.

    Parameters
    ----------
    block : int
        Positions in a block of the cache.
    f16 : bool
        Pairs of f16 may be multiplied, a few of which are added up before they go into f32.
    matrix : bool
        Matrices of f16 may be multiplied, with sums in f32.
    v_cols : int
        Values are the first columns of keys, so many of each; 0 where they lie by themselves.
    """

    block: int
    scale: float
    kv_heads: int
    window: int = 0
    softcap: float = 0.0
    f16: bool = False
    matrix: bool = False
    causal: bool = True
    chunk: int = 0
    symmetric_window: int = 0
    alibi: float = 0.0
    temperature: Temperature | None = None
    v_cols: int = 0

    def __post_init__(self) -> None:
        names = ("window", "softcap", "chunk", "symmetric_window", "alibi", "v_cols")
        for name in names:
            value = getattr(self, name)
            require(value >= 0, ShapeError, f"attention: {name} is {value}, needs 0 or more")
        self._require_sides()

    def _require_sides(self) -> None:
        require(
            self.causal or not (self.window or self.chunk),
            ShapeError,
            f"attention: window {self.window} and chunk {self.chunk} count what is before a token, "
            "with causal=False they need to be 0; take symmetric_window",
        )
        require(
            not (self.causal and self.symmetric_window),
            ShapeError,
            f"attention: a symmetric_window of {self.symmetric_window} needs causal=False; take "
            "window, which counts what is before a token and the token",
        )

    def seen(self, longest: int) -> int:
        """Return how many of `longest` positions a token can see, if no end is given for it."""
        # Half on each side, and the token itself.
        around = self.symmetric_window and self.symmetric_window // 2 * 2 + 1
        return min(
            n for n in (longest, self.window or longest, self.chunk or longest, around or longest)
        )

    def params(self, heads: int) -> dict[str, int | float]:
        """Return the kernel parameters for this many query heads."""
        # The largest power of two within the number of heads.
        whole = 1 << (max(heads, 1).bit_length() - 1)
        # The kernel has the fields also without a temperature; 1 avoids a division by 0.
        temperature = self.temperature or Temperature(0.0, 1)
        return {
            "block": self.block,
            "scale": self.scale,
            "kv_heads": self.kv_heads,
            "window": self.window,
            "softcap": self.softcap,
            "chunk": self.chunk,
            "half_window": self.symmetric_window // 2,
            "alibi_heads": whole,
            "alibi": -self.alibi / whole,
            "temper": temperature.factor,
            "temper_length": temperature.length,
            "temper_offset": temperature.offset,
        }

    @property
    def choices(self) -> dict[str, bool]:
        """Return the shader parameters that differ from plain causal attention."""
        chosen = {
            "CHUNKED": self.chunk > 0,
            "AROUND": self.symmetric_window > 0,
            "CAPPED": self.softcap > 0,
            "ALIBI": self.alibi > 0,
            "TEMPERED": self.temperature is not None,
            "SHARED": self.v_cols > 0,
        }
        return {
            # Left out where they are off, so that equal kernels have equal texts and are compiled
            # once.
            **{n: True for n, on in chosen.items() if on},
            **({} if self.causal else {"CAUSAL": False}),
        }
