"""A tiny model of `tests/data`, with transformers' rows of pictures, logits and tokens."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import PIL

import wgpu_backend as wb
from tests.data.recording import IMAGE, read_recorded, shape_weights, write_checkpoint
from tests.data.tower_weights import picture
from wgpu_backend.engine.media import STAND_IN, Part, Prompt
from wgpu_backend.testing import nmse

# Other versions of Pillow round a few values of resized pictures otherwise.
LIMIT = 1e-9 if PIL.__version__.startswith("13.") else 1e-3


def ask_greedily(prompt: Prompt, count: int = 8) -> wb.Request:
    """A request for the most likely tokens."""
    fields: dict[str, Any] = {"options": {"temperature": 0}, "ignore_eos": True}
    return wb.Request.of(prompt.tokens, placed=prompt.placed, max_tokens=count, **fields)


class Recorded:
    """A recorded model; `mark` stands for a picture in its texts."""

    def __init__(self, name: str, mark: str) -> None:
        self.name, self.mark = name, mark

    @cached_property
    def facts(self) -> dict[str, Any]:
        return read_recorded(self.name)[0]

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return read_recorded(self.name)[1]

    @property
    def cases(self) -> dict[str, tuple[str, str]]:
        """Texts, and the names of their pictures."""
        return self.facts["cases"]

    def weights(self) -> dict[str, np.ndarray]:
        return shape_weights(self.facts)

    def write(self, path: Path) -> Path:
        return write_checkpoint(path, self.facts, self.mark)

    def shown(self, name: str) -> np.ndarray:
        return picture(*self.facts["sizes"][name])

    def tokens(self, case: str) -> list[int]:
        """Transformers' tokens after a prompt."""
        return self.arrays[f"tokens {case}"][-8:].tolist()

    def ask(self, model: wb.LanguageModel, case: str) -> Prompt:
        text, names = self.cases[case]
        parts = [Part("image", self.shown(name)) for name in names]
        return model.towers.raw(model.prompter, text, parts)

    def require_logits(self, model: wb.LanguageModel) -> None:
        for case, (text, names) in self.cases.items():
            wanted = self.arrays[f"logits {case}"]
            ids = self.arrays[f"tokens {case}"][: len(wanted)]
            prompt = self.ask(model, case)
            assert [IMAGE if t >= STAND_IN else t for t in prompt.tokens] == ids.tolist()
            found = model.logits(text, images=[self.shown(name) for name in names])
            assert found.shape == wanted.shape
            assert nmse(found, wanted) < LIMIT, case

    def require_rows(self, model: wb.LanguageModel, name: str) -> None:
        [placed] = model._raw_prompt(self.mark, [self.shown(name)]).placed
        found, wanted = model.towers.encode(placed), self.arrays[f"rows {name}"]
        assert found.shape == wanted.shape
        assert nmse(found, wanted) < LIMIT, name

    def require_answers(self, engine: wb.Engine, model: wb.LanguageModel) -> None:
        """All cases at once are answered as transformers does."""
        running = {case: engine.submit(ask_greedily(self.ask(model, case))) for case in self.cases}
        for case, each in running.items():
            assert [*each.result().choices[0].tokens] == self.tokens(case), case
