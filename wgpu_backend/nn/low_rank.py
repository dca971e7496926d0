"""Low-rank changes of weights: what LoRA adapters add to products and embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from wgpu_backend.ml.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """``scale * B A``, added to a weight without changing it.

    Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", §4.1, eq. 3. The product
    goes through the few rows of A, so the sum of both matrices is never made.

    Parameters
    ----------
    a : (rank, k), or (experts, rank, k); of an embedding (vocabulary, rank)
    b : (m, rank), or (experts, m, rank)
        In the place of experts there may be heads, or 1 where all heads share the matrix.
    scale : (1,), f32
        On the device, where it may be written between passes.
    """

    a: Tensor
    b: Tensor
    scale: Tensor

    def linear(self, y: Tensor, x: Tensor) -> Tensor:
        """Add to `y`, (..., m), what is made of `x`, (..., k)."""
        return self.b.linear(self.a.linear(x, None).mul(self.scale), y)

    def by_head(self, y: Tensor, x: Tensor) -> Tensor:
        """Add to `y`, (heads, tokens, m), what each head makes of its rows of `x`."""
        return y.add(self.b.mulmat(self.a.mulmat(x).mul(self.scale)))

    def rows(self, y: Tensor, ids: Tensor) -> Tensor:
        """Add to rows `y` of an embedding, (tokens, m), what belongs to their `ids`."""
        return self.b.linear(self.a.rows(ids).mul(self.scale), y)

    def by(self, y: Tensor, ids: Tensor, x: Tensor) -> Tensor:
        """Add to `y`, (tokens, used, m), what experts `ids` make of `x`, (tokens, 1 or used, k)."""
        low = self.a.mulmat_id(x, ids).mul(self.scale)
        return y.add(self.b.mulmat_id(low, ids))
