"""EXAONE 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.choices import bools, listed
from wgpu_backend.files.huggingface.families.llama import Olmo2
from wgpu_backend.files.huggingface.family import family


@family("Exaone4ForCausalLM")
class Exaone4(Olmo2):
    """OLMo 2's norms; the larger model has windows, and layers without positions."""

    architecture = "exaone4"
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-5, "sliding_window": 4096}

    def keys(self) -> dict[str, Value]:
        """Which layers have a window, also where none has: those without do not rotate."""
        s = self.settings
        made: dict[str, Value] = {"vocab_size": s.uint("vocab_size")}
        slides = self.slides()
        if "sliding_window" not in s:
            return made
        made["attention.sliding_window"] = s.uint("sliding_window")
        return made | {"attention.sliding_window_pattern": bools(slides)}

    def slides(self) -> list[bool]:
        """Listed, or spelt, or every so many has none."""
        s = self.settings
        if isinstance(s.value("sliding_window_pattern"), str):
            pattern = s.text("sliding_window_pattern") or "L"
            slides = listed(s, lambda i: pattern[i % len(pattern)] == "L")
        else:
            every = s.uint("sliding_window_pattern", default=4) or 1
            slides = listed(s, lambda i: (i + 1) % every != 0)
        return slides if "sliding_window" in s else []
