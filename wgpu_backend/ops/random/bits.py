"""Random bits of a key: random_bits, random_split, and key_words for the key of a seed.

Bits come from Threefry-2x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")
with 20 rounds, in MLX's order, so equal keys give equal bits there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import U8, U16, U32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, extents
from wgpu_backend.ops.check import ceil_div, require, require_dtype
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

WIDTHS = {1: U8, 2: U16, 4: U32}


def key_words(seed: int) -> tuple[int, int]:
    """Return the key of a seed as two u32 words, the high one first.

    Parameters
    ----------
    seed : int
        Its lowest 64 bits count.
    """
    return seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF


def require_key(name: str, key: Node) -> None:
    """Raise unless an operand is a key."""
    require_dtype(name, "key", key, (U32,))
    require(
        key.spec.shape == (2,),
        ShapeError,
        f"{name}: key is {key.spec.shape}, needs (2,); random_split makes several of one",
    )


@op(dense=("key",), trusted=True)
def random_bits(key: Node, shape: Sequence[int], width: int = 4) -> Launch:
    """Draw random bits.

    Parameters
    ----------
    key : (2,)
        u32.
    width : int
        Bytes of a value: 1, 2 or 4.

    Returns
    -------
    Tensor of that shape, u8, u16 or u32.

    Raises
    ------
    ShapeError
        `key` has another shape.
    OptionError
        There is no such width.
    """
    require_key("random_bits", key)
    require(
        width in WIDTHS, OptionError, f"random_bits: width is {width}, needs one of {list(WIDTHS)}"
    )
    out = Spec.dense(extents("random_bits: shape", shape), WIDTHS[width])
    words = ceil_div(out.nbytes, 4)
    return Launch(out, {"key": key}, threads=words, params={"words": words}, work=16 * words)


@random_bits.reference
def random_bits_reference(key: Array, shape: Sequence[int], width: int = 4) -> Array:
    """Draw random bits."""
    size = math.prod(shape)
    kind: np.dtype[Any] = np.dtype(f"u{width}")
    return words(key, -(-size * width // 4)).view(kind)[:size].reshape(tuple(shape))


def random_split(key: Node, num: int = 2) -> Node:
    """Derive keys whose random bits differ from each other's and from the original key's.

    Parameters
    ----------
    key : (2,)
        u32.

    Returns
    -------
    (num, 2), u32.
    """
    require_key("random_split", key)
    return random_bits(key, (num, 2))


# Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", with the constants of
# Threefry-2x32.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
Words = NDArray[np.uint32]


def threefry(key: Array, first: Words, second: Words) -> tuple[Words, Words]:
    """Return the two random words for each counter of two words; 20 rounds of Threefry-2x32."""
    k0, k1 = (np.uint32(word) for word in key)
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(_PARITY))
    with np.errstate(over="ignore"):
        a, b = first + k0, second + k1
        # Words of the key are added after every four rounds.
        for group in range(5):
            for turn in _ROTATIONS[group % 2]:
                a = a + b
                b = a ^ ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn)))
            a = a + keys[(group + 1) % 3]
            b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def words(key: Array, count: int) -> Words:
    """Return `count` random words: the first words of all Threefry blocks, then the second."""
    half, odd = divmod(count, 2)
    places = np.arange(half, dtype=np.uint32)
    first, second = threefry(key, places, places + np.uint32(half + odd))
    # Of an odd number, the middle word has no partner: its second counter is 0.
    middle, _ = threefry(key, np.full(odd, half, np.uint32), np.zeros(odd, np.uint32))
    return np.concatenate([first, middle, second])
