"""EXAONE 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import Olmo2
from wgpu_backend.files.huggingface.family import family
from wgpu_backend.files.huggingface.shared_settings import bools, find_sliding


@family("Exaone4ForCausalLM")
class Exaone4(Olmo2):
    """OLMo 2's norms; the larger model has windows, and layers without positions."""

    architecture = "exaone4"
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-5, "sliding_window": 4096}

    def keys(self) -> dict[str, Value]:
        """Return the keys of windows even if no layer has one: such layers have no RoPE."""
        s = self.settings
        made: dict[str, Value] = {"vocab_size": s.uint("vocab_size")}
        slides = self.slides()
        if "sliding_window" not in s:
            return made
        made["attention.sliding_window"] = s.uint("sliding_window")
        return made | {"attention.sliding_window_pattern": bools(slides)}

    def slides(self) -> list[bool]:
        """Return the layers with a window: as listed, by a pattern, or all but each n-th."""
        s = self.settings
        if isinstance(s.value("sliding_window_pattern"), str):
            pattern = s.text("sliding_window_pattern") or "L"
            slides = find_sliding(s, lambda i: pattern[i % len(pattern)] == "L")
        else:
            every = s.uint("sliding_window_pattern", default=4) or 1
            slides = find_sliding(s, lambda i: (i + 1) % every != 0)
        return slides if "sliding_window" in s else []
