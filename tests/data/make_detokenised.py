"""Records what llama.cpp's detokeniser makes of its vectors, in ``tests/data/detokenised.json``.

Run it from the root of the repository, in the environment that `make_logits` describes, with the
folder that holds ``ggml-vocab-NAME.gguf`` and the ``.inp`` and ``.out`` beside each::

    oracle/bin/python -m tests.data.make_detokenised ../shared/data/tokenizers

``wordpiece`` has the vectors of WordPiece whole, over a vocabulary of only the tokens in them,
whose longest matches are those of the large one: these need no file from elsewhere. ``cleaned``
has the texts of other vocabularies that llama.cpp does not give back as they were, by number.
"""

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from tests.data.make_logits import bindings

RECORDED = Path(__file__).with_name("detokenised.json")
SEPARATOR = "\n__ggml_vocab_test__\n"
ROOM = 65536


def vectors(path: Path) -> list[tuple[str, list[int]]]:
    """Texts and their tokens, special ones left out."""
    texts = Path(f"{path}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{path}.out").read_text("utf-8").split("\n")
    return [
        (text, [int(t) for t in line.split()]) for text, line in zip(texts, lines, strict=False)
    ]


class Vocabulary:
    """A file's vocabulary as llama.cpp loads it.

    Parameters
    ----------
    llama : module
    path : Path
    """

    def __init__(self, llama: ModuleType, path: Path) -> None:
        parameters = llama.llama_model_default_params()
        parameters.vocab_only = True
        self._llama = llama
        self._vocabulary = llama.llama_model_get_vocab(
            llama.llama_model_load_from_file(os.fsencode(path), parameters)
        )

    def decode(self, ids: list[int], *, special: bool) -> str:
        """Text of tokens, control tokens spelled out when `special`."""
        tokens, room = (ctypes.c_int32 * len(ids))(*ids), ctypes.create_string_buffer(ROOM)
        count = self._llama.llama_detokenize(
            self._vocabulary, tokens, len(ids), room, ROOM, False, special
        )
        return room.raw[:count].decode("utf-8")

    def text(self, token: int) -> str:
        """A token as the file spells it."""
        return self._llama.llama_vocab_get_text(self._vocabulary, token).decode()


def word_piece(llama: ModuleType, path: Path) -> dict[str, object]:
    """Vectors over the tokens that they need: text, ids, decoded without and with the unknown."""
    vocabulary, cases = Vocabulary(llama, path), vectors(path)
    used = sorted({100, 101, 102}.union(*(ids for _, ids in cases)))  # [UNK], [CLS], [SEP]
    decoded = [
        (
            text,
            [used.index(token) for token in ids],
            vocabulary.decode(ids, special=False),
            vocabulary.decode(ids, special=True),
        )
        for text, ids in cases
    ]
    return {"tokens": [vocabulary.text(token) for token in used], "vectors": decoded}


def cleaned(llama: ModuleType, path: Path) -> dict[str, str]:
    """Texts that come back changed, by number of the vector."""
    vocabulary = Vocabulary(llama, path)
    decoded = ((text, vocabulary.decode(ids, special=True)) for text, ids in vectors(path))
    return {str(i): after for i, (before, after) in enumerate(decoded) if before != after}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        llama = bindings(Path(name))
        quiet = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(quiet, None)
        llama.llama_backend_init()
        paths = {p.stem.removeprefix("ggml-vocab-"): p for p in Path(sys.argv[1]).glob("*.gguf")}
        bert = paths.pop("bert-bge")
        recorded = {
            "wordpiece": word_piece(llama, bert),
            "cleaned": {name: cleaned(llama, paths[name]) for name in sorted(paths)},
        }
    RECORDED.write_text(json.dumps(recorded, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
