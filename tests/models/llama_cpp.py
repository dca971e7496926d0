"""What llama.cpp computes differently on purpose, for comparisons with its numbers."""

import pytest

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.models import gemma3n


def follow_llama_cpp(patch: pytest.MonkeyPatch) -> None:
    """Have Gemma 3n's sparse layers divide variances by n - 1."""
    ours = gemma3n.sparse_gelu

    def sparse_gelu(scale: float):
        def activation(x: Tensor) -> Tensor:
            count = x.shape[-1]
            return ours(scale * (count / (count - 1)) ** 0.5)(x)

        return activation

    patch.setattr(gemma3n, "sparse_gelu", sparse_gelu)
