"""Make `tests/data/logits/adapters.npz`: logits of models with LoRA adapters and control vectors.

    PYTHON -m tests.data.make_adapters

PYTHON has what ``../shared/reference/oracle.md`` asks for, and jinja2. Models and adapters are
those of `tests.models.adapters`; llama.cpp's logits are kept, in exact arithmetic, for a few rows;
of an encoder its last states. An encoder has no control vectors there.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT.parent / "shared" / "tools"))

from tests.models.adapters import CASES, FIRST, SECOND, STRENGTH, files_of  # noqa: E402
from tests.models.outlines import LOGITS, ROWS, TOKENS, outlines, written  # noqa: E402
from wgpu_backend.files.gguf.reader import open_gguf  # noqa: E402

FILE = LOGITS.with_name("adapters.npz")


def main() -> None:
    from oracle_logits import Oracle

    kept: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for case in CASES:
            base = written(folder / f"{case}.gguf", outlines()[case])
            first, second, control = files_of(case, base, folder)
            states = case == "bert"
            pooling = "none" if states else None
            oracle = Oracle(str(base), exact=True, embeddings=states, pooling=pooling)
            set_loras(oracle, {first: FIRST, second: SECOND})
            kept[case] = rows(oracle, states=states)
            if not states:
                set_loras(oracle, {})
                set_control(oracle, control)
                kept[f"{case} steered"] = rows(oracle, states=False)
    np.savez_compressed(FILE, **kept)


def rows(oracle: Any, *, states: bool) -> np.ndarray:
    """Rows of what llama.cpp makes of the tokens."""
    if not states:
        return oracle.logits(TOKENS)[list(ROWS)].astype("f4")
    from oracle_logits import L

    if status := L.llama_encode(oracle.ctx, oracle._batch(TOKENS)):
        raise SystemExit(f"llama_encode gave {status}")
    width = (oracle.n_embd,)
    found = [np.ctypeslib.as_array(L.llama_get_embeddings_ith(oracle.ctx, i), width) for i in ROWS]
    return np.array(found, "f4")


def set_loras(oracle: Any, scales: dict[Path, float]) -> None:
    """Have adapters take part."""
    from oracle_logits import L

    count = max(len(scales), 1)
    loaded = [L.llama_adapter_lora_init(oracle.model, os.fsencode(path)) for path in scales]
    if not all(loaded):
        raise SystemExit(f"llama.cpp takes no {[*scales]}")
    adapters = (L.llama_adapter_lora_p_ctypes * count)(*loaded)
    factors = (ctypes.c_float * count)(*scales.values())
    L.llama_set_adapters_lora(oracle.ctx, adapters, len(scales), factors)


def set_control(oracle: Any, path: Path) -> None:
    """Have a control vector take part, in all layers."""
    from oracle_logits import L

    with open_gguf(path) as file:
        each = [
            np.frombuffer(file.data(f"direction.{i + 1}"), "f4") for i in range(len(file.tensors))
        ]
    data = STRENGTH * np.concatenate(each)
    pointer = data.astype("f4").ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    L.llama_set_adapter_cvec(oracle.ctx, pointer, data.size, oracle.n_embd, 1, 99)


if __name__ == "__main__":
    main()
