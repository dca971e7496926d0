"""What one forward pass is given: tokens, where they stand, where their keys go, what is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.attention import Pages

if TYPE_CHECKING:
    from wgpu_backend.kvcache.paged import PagedCache


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What decides the graph of a batch; batches of one shape share a recorded graph.

    Parameters
    ----------
    tokens : int
        Rows of the batch, padding included.
    outputs : int
        Rows that logits are wanted for.
    sequences : int
        Rows of the block table.
    longest : int
        Most positions any sequence has.
    """

    tokens: int
    outputs: int
    sequences: int
    longest: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass, as tensors of its graph.

    Parameters
    ----------
    context : Context
    shape : BatchShape
    tokens : (tokens,), i32
    positions : (tokens,), i32
        Position of each token in its sequence; -1 for padding.
    slots : (tokens,), i32
        Row of the cache that takes each token's key and value; -1 for padding.
    outputs : (outputs,), i32
        Rows that logits are wanted for.
    pages : Pages
        Where the cache holds what the tokens may attend to.
    cache : PagedCache
    """

    context: Context
    shape: BatchShape
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    outputs: Tensor
    pages: Pages
    cache: PagedCache
