"""Parts of recorded tiny models that their makers and their tests share; needs no torch."""

import json
from functools import cache
from pathlib import Path

import numpy as np

from tests.data.tower_weights import make_weights
from tests.files.huggingface.folders import TOKENIZER, VOCABULARY, write_folder

# The number of a picture's mark, after the vocabulary.
IMAGE = len(VOCABULARY)


def tokenize(text, mark):
    """Return the ids of a text, with the longest entries of the vocabulary first."""
    known = sorted(VOCABULARY[2:], key=len, reverse=True)
    ids, spelled = [], text.replace(" ", "Ġ")
    while spelled:
        if spelled.startswith(mark):
            ids.append(IMAGE)
            spelled = spelled.removeprefix(mark)
            continue
        # " t" comes after "the" among the merges.
        usable = [each for each in known if each != "Ġt" or not spelled.startswith("Ġth")]
        found = next(each for each in usable if spelled.startswith(each))
        ids.append(VOCABULARY.index(found))
        spelled = spelled.removeprefix(found)
    return ids


def save_recorded(path, arrays, **facts):
    """Write arrays, and facts as JSON, to one file."""
    facts["shapes"] = {name: list(shape) for name, shape in facts["shapes"].items()}
    whole = json.dumps(facts, separators=(",", ":")).encode()
    np.savez_compressed(path, facts=np.frombuffer(whole, np.uint8), **arrays)


@cache
def read_recorded(name):
    """Return the facts and the arrays of a file in this folder."""
    with np.load(Path(__file__).with_name(f"{name}.npz")) as file:
        arrays = dict(file)
    return json.loads(arrays.pop("facts").tobytes()), arrays


def shape_weights(facts):
    """Return the weights of a recorded model."""
    return make_weights({name: tuple(shape) for name, shape in facts["shapes"].items()})


def write_checkpoint(path, facts, mark):
    """Write a recorded model as a Hugging Face folder."""
    added = [*TOKENIZER["added_tokens"], {"id": IMAGE, "content": mark, "special": True}]
    write_folder(path, shape_weights(facts), tokenizer={**TOKENIZER, "added_tokens": added})
    (path / "config.json").write_text(json.dumps(facts["config"]))
    (path / "preprocessor_config.json").write_text(json.dumps(facts["processor"]))
    return path
