"""What was predicted of a card's speed from static costs of the kernels: nobody measured it.

``benchmarks.gpu_costs.predict`` writes the data, and ``docs/predicted-speed.md``, the same as a
table.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from wgpu_backend.files.gguf.config import Config

_OTHERS = r"(?:D|Ti|Super|GRE|Laptop|Mobile|Max-Q)\b"  # what tells a card from its namesakes
_BOUNDS = {
    "bytes": "reading weights",
    "instructions": "instructions",
    "accesses": "how lanes access memory",
    "one wave": "work groups being few",
    "gaps": "gaps between dispatches",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens a second, and what takes most of the time."""

    tokens_per_second: float
    bound: str

    @property
    def summary(self) -> str:
        """The prediction in words."""
        rate = f"{self.tokens_per_second:g} tokens/s predicted, not measured by anybody"
        return f"{rate}; bound by {_BOUNDS.get(self.bound, self.bound)}"


@cache
def _data() -> dict[str, Any]:
    text = files("wgpu_backend.cli").joinpath("predictions.json").read_text("utf-8")
    return json.loads(text)


def predicted(config: Config, dtype: str, device: str, test: str) -> Prediction | str:
    """What was predicted for a test, or why nothing was.

    Parameters
    ----------
    config : Config
        Of the model, whose sizes must be those of a model that costs were worked out for.
    dtype : str
        Type that most of its bytes are of, such as ``Q4_0``.
    device : str
        The adapter's own name.
    test : str
        ``pp128``, or ``tg32``: tokens made one by one are looked up whatever their number, as long
        as the predicted step looks at as many positions.

    Returns
    -------
    Prediction or str
        The reason in words where there is none.
    """
    data = _data()
    card = next((name for name in data["cards"] if _is_card(name, device)), None)
    if card is None:
        return f"{device} is not among {', '.join(data['cards'])}"
    model = _model_of(config, data["models"])
    if model is None:
        return f"the model has the sizes of none of {', '.join(data['models'])}"
    columns: list[str] = data["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in data["predictions"]]
    rows = [row for row in rows if row["card"] == card and row["model"] == model]
    return _chosen(rows, dtype, _kind_of(test, data["positions"]))


def _chosen(rows: list[dict[str, Any]], dtype: str, test: str) -> Prediction | str:
    # Of K-quants the data have the usual mixture, whose larger part the name begins with.
    formats = {row["format"].removesuffix("_m"): row["format"] for row in rows}
    format = formats.get(dtype.lower())
    if format is None:
        return f"nothing was worked out for {dtype}, only for {', '.join(sorted(formats.values()))}"
    found = {row["test"]: row for row in rows if row["format"] == format}
    if test not in found:
        return f"nothing was worked out for this length, only for {', '.join(found)}"
    return Prediction(found[test]["tokens_per_second"], found[test]["bound"])


def _is_card(name: str, device: str) -> bool:
    """Whether an adapter is a card: its words are the card's, and no other of its series."""
    bare = re.sub(r"\((?:TM|R)\)", "", device)
    words = r"\s+".join(map(re.escape, name.split()))
    return re.search(rf"\b{words}\b(?!\s*{_OTHERS})", bare, re.IGNORECASE) is not None


def _model_of(config: Config, models: dict[str, dict[str, int]]) -> str | None:
    for name, sizes in models.items():
        if all(config.uint(key, 0) == size for key, size in sizes.items()):
            return name
    return None


def _kind_of(test: str, positions: int) -> str:
    if test.startswith("tg") and int(test.removeprefix("tg")) <= positions:
        return "tg"
    return test
