"""EXAONE 4."""

from __future__ import annotations

from wgpu_backend.config import Value
from wgpu_backend.folders.families.llama import Olmo2, llama3_extra
from wgpu_backend.folders.family import bools, family, layer_count
from wgpu_backend.folders.values import Values


@family("Exaone4ForCausalLM")
class Exaone4(Olmo2):
    """OLMo 2's norms; the larger model has windows, and layers without positions."""

    architecture = "exaone4"

    def keys(self) -> dict[str, Value]:
        """Which layers have a window: listed, or spelt, or every so many has none."""
        s = self.settings
        made: dict[str, Value] = {"vocab_size": s.uint("vocab_size")}
        if "sliding_window" not in s:
            return made
        made["attention.sliding_window"] = s.uint("sliding_window")
        return made | {"attention.sliding_window_pattern": bools(self._slides())}

    def extra(self) -> dict[str, Values]:
        """Factors of frequencies, as Llama 3.1 has them."""
        return llama3_extra(self)

    def _slides(self) -> list[bool]:
        s, count = self.settings, layer_count(self.settings)
        if "layer_types" in s:
            return [kind == "sliding_attention" for kind in s.texts("layer_types")]
        if isinstance(s.value("sliding_window_pattern"), str):
            pattern = s.text("sliding_window_pattern") or "L"
            return [pattern[i % len(pattern)] == "L" for i in range(count)]
        every = s.uint("sliding_window_pattern", default=4) or 1
        return [(i + 1) % every != 0 for i in range(count)]
