"""The `repr` of a language model, and its table in notebooks."""

from __future__ import annotations

import math

from wgpu_backend.graph.html_tables import binary_size, html_table
from wgpu_backend.ml.backend import Backend


class Shown:
    """The display methods of a language model."""

    backend: Backend
    num_ctx: int

    def __repr__(self) -> str:
        file, *facts = self._facts().values()
        return f"LanguageModel({file}: {', '.join(facts)})"

    def _repr_html_(self) -> str:
        return html_table(self._facts().items())

    def _facts(self) -> dict[str, str]:
        file, info = self.backend.file, self.backend.device
        tensors = file.tensors.values()
        size = binary_size(sum(tensor.nbytes for tensor in tensors))
        count = sum(math.prod(tensor.shape) for tensor in tensors)
        types = dict.fromkeys(tensor.dtype.name for tensor in tensors)
        return {
            "file": str(file.path),
            "architecture": file.config.architecture,
            "weights": f"{count / 1e6:.1f} M in {size} of {'/'.join(types)}",
            "context": f"{self.num_ctx} positions",
            "device": f"{info.id} {info.name}",
        }
