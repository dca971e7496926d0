"""Tokens that transformers chooses after the prompts of tiny towers, for `tests/towers.py`.

Needs what ``../shared/tools/tiny_towers.py`` needs; writes greedy.json into each folder, and for
Llama 3.2 Vision logits.npz, without the pictures that earlier tokens see in transformers, see
`make_mllama.py`::

    python tests/data/make_tower_greedy.py FOLDER...
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[3] / "shared" / "tools"))
import tiny_towers

COUNT = 16
_LEFT = ("media", "positions", "logits", "embeds", "tower", "attention_mask")
_TOKENS = ("input_ids", "token_type_ids", "mm_token_type_ids")


def inputs(arrays, pictures, torch):
    """Return what the processor made of a prompt, with an axis of batches."""
    start = f"p{pictures}."
    names = [name.removeprefix(start) for name in arrays if name.startswith(start)]
    names = [name for name in names if "." not in name and name not in _LEFT]
    made = {name: torch.tensor(arrays[start + name]) for name in names}
    for name in _TOKENS:
        if name in made and made[name].ndim == 1:
            made[name] = made[name][None]
    return made


def choose(model, given, torch):
    """Return the most likely tokens after a prompt, each from a pass over all before it."""
    tokens = []
    for _ in range(COUNT):
        found = int(model(**given, use_cache=False).logits[0, -1].argmax())
        tokens.append(found)
        for name in _TOKENS:
            if name in given:
                more = torch.tensor([[found if name == "input_ids" else 0]])
                given[name] = torch.cat([given[name], more], 1)
        mask = given.get("cross_attention_mask")
        if mask is not None:
            given["cross_attention_mask"] = torch.cat([mask, mask[:, -1:]], 1)
    return tokens


def main(folders):
    torch, transformers = tiny_towers.libs()
    with torch.no_grad():
        for folder in map(Path, folders):
            config = json.loads((folder / "hf" / "config.json").read_text())
            made = getattr(transformers, config["architectures"][0])
            model = made.from_pretrained(folder / "hf", attn_implementation="eager").float().eval()
            arrays = np.load(folder / "reference.npz")
            if config["model_type"] == "mllama":
                from tests.data.make_mllama import hide_pictures

                hide_pictures(model)
            counts = [count for count in (1, 2) if f"p{count}.logits" in arrays]
            if config["model_type"] == "mllama":
                given = {i: inputs(arrays, i, torch) for i in counts}
                logits = {f"p{i}.logits": model(**given[i]).logits[0].numpy() for i in counts}
                np.savez(folder / "logits.npz", **logits)
            found = {i: choose(model, inputs(arrays, i, torch), torch) for i in counts}
            (folder / "greedy.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
