"""Low-rank weight updates: the terms that LoRA adapters add to products and embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from wgpu_backend.ml.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """``scale * B A``, added to a product without changing the weight.

    Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", §4.1, eq. 3. The input is
    multiplied by A and then by B, so the full matrix ``B A`` is never computed.

    Parameters
    ----------
    a : (rank, k), or (experts, rank, k); of an embedding (vocabulary, rank)
    b : (m, rank), or (experts, m, rank)
        Instead of experts there may be heads, or 1 where all heads share the matrix.
    scale : (1,), f32
        On the device, so that it can change between passes without a new graph.
    """

    a: Tensor
    b: Tensor
    scale: Tensor

    def linear(self, y: Tensor, x: Tensor) -> Tensor:
        """Add the update for `x`, (..., k), to `y`, (..., m)."""
        # The scale multiplies the middle, which has the fewest values: rank instead of k or m.
        return self.b.linear(self.a.linear(x, None).mul(self.scale), y)

    def by_head(self, y: Tensor, x: Tensor) -> Tensor:
        """Add the update for each head's rows of `x` to `y`, (heads, tokens, m)."""
        return y.add(self.b.mulmat(self.a.mulmat(x).mul(self.scale)))

    def rows(self, y: Tensor, ids: Tensor) -> Tensor:
        """Add the update for `ids` to rows `y` of an embedding, (tokens, m)."""
        return self.b.linear(self.a.rows(ids).mul(self.scale), y)

    def by(self, y: Tensor, ids: Tensor, x: Tensor) -> Tensor:
        """Add the update of experts `ids` for `x`, (tokens, 1 or used, k), to `y`."""
        low = self.a.mulmat_id(x, ids).mul(self.scale)
        return y.add(self.b.mulmat_id(low, ids))
