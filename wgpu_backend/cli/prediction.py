"""Predictions of a card's speed from static costs of the kernels, not measurements.

``benchmarks.gpu_costs.predict`` writes the data, and the same as a table in
``docs/predicted-speed.md``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from wgpu_backend.files.gguf.config import Config

# Suffixes of other cards whose names begin with a card's name.
_OTHERS = r"(?:D|Ti|Super|GRE|Laptop|Mobile|Max-Q)\b"
_BOUNDS = {
    "bytes": "reading weights",
    "instructions": "instructions",
    "accesses": "how lanes access memory",
    "one wave": "work groups being few",
    "gaps": "gaps between dispatches",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """A prediction: tokens per second, and the bottleneck."""

    tokens_per_second: float
    bound: str

    @property
    def summary(self) -> str:
        """The prediction as text."""
        rate = f"{self.tokens_per_second:g} tokens/s predicted, not measured"
        return f"{rate}; bound by {_BOUNDS.get(self.bound, self.bound)}"


@cache
def _data() -> dict[str, Any]:
    text = files("wgpu_backend.cli").joinpath("predictions.json").read_text("utf-8")
    return json.loads(text)


def find_prediction(config: Config, dtype: str, device: str, test: str) -> Prediction | str:
    """Return the prediction for a test, or the reason why there is none.

    Parameters
    ----------
    config : Config
        Metadata of the model, whose sizes must equal those of a predicted model.
    dtype : str
        Type of most of the weights' bytes, such as ``Q4_0``.
    device : str
        Name of the adapter.
    test : str
        ``pp128``, or ``tg32``: generation is looked up for any number of tokens up to the
        positions of the predicted step.

    Returns
    -------
    Prediction or str
        The prediction, or the reason as text.
    """
    data = _data()
    card = next((name for name in data["cards"] if _is_card(name, device)), None)
    if card is None:
        return f"{device} is not among {', '.join(data['cards'])}"
    model = _find_model(config, data["models"])
    if model is None:
        return f"the model has other sizes than {', '.join(data['models'])}"
    columns: list[str] = data["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in data["predictions"]]
    rows = [row for row in rows if row["card"] == card and row["model"] == model]
    return _select_row(rows, dtype, _find_test(test, data["positions"]))


def _select_row(rows: list[dict[str, Any]], dtype: str, test: str) -> Prediction | str:
    # The data have the "_m" mix of K-quants, whose main type the name begins with.
    formats = {row["format"].removesuffix("_m"): row["format"] for row in rows}
    format = formats.get(dtype.lower())
    if format is None:
        return f"no prediction for {dtype}, only for {', '.join(sorted(formats.values()))}"
    found = {row["test"]: row for row in rows if row["format"] == format}
    if test not in found:
        return f"no prediction for this length, only for {', '.join(found)}"
    return Prediction(found[test]["tokens_per_second"], found[test]["bound"])


def _is_card(name: str, device: str) -> bool:
    """Return whether an adapter's name is that of a card, and not of a variant of it."""
    # Intel's adapters have "(R)" and "(TM)" between the words of a card's name.
    bare = re.sub(r"\((?:TM|R)\)", "", device)
    words = r"\s+".join(map(re.escape, name.split()))
    return re.search(rf"\b{words}\b(?!\s*{_OTHERS})", bare, re.IGNORECASE) is not None


def _find_model(config: Config, models: dict[str, dict[str, int]]) -> str | None:
    for name, sizes in models.items():
        # By sizes: names of files and of models say less about the work.
        if all(config.uint(key, 0) == size for key, size in sizes.items()):
            return name
    return None


def _find_test(test: str, positions: int) -> str:
    if test.startswith("tg") and int(test.removeprefix("tg")) <= positions:
        return "tg"
    return test
