"""Records llama.cpp's tokens of texts that once gave others, in ``tests/data/tokenised.json``.

Run it from the root of the repository, in the environment that `make_logits` describes, with the
folder that holds ``ggml-vocab-NAME.gguf``::

    oracle/bin/python -m tests.data.make_tokenised ../shared/data/tokenizers

The texts were found by comparing random ones; they are kept in the file, and this asks again for
their tokens. ``wordpiece`` is over a vocabulary of only the tokens in them, whose longest matches
are those of the large one: these need no file from elsewhere. The others name their vocabulary.
"""

import ctypes
import json
import sys
import tempfile
from pathlib import Path

from tests.data.make_detokenised import Vocabulary
from tests.data.make_logits import bindings

RECORDED = Path(__file__).with_name("tokenised.json")
ROOM = 4096


class Encoder(Vocabulary):
    """A file's vocabulary as llama.cpp loads it."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, control tokens parsed, none added."""
        data, room = text.encode(), (ctypes.c_int32 * ROOM)()
        count = self._llama.llama_tokenize(
            self._vocabulary, data, len(data), room, ROOM, False, True
        )
        return list(room[:count])


def word_pieces(vocabulary: Encoder, texts: list[str]) -> dict[str, object]:
    """Texts and ids over the tokens that they need."""
    encoded = [vocabulary.encode(text) for text in texts]
    used = sorted({100, 101, 102}.union(*encoded))  # [UNK], [CLS], [SEP]
    vectors = [
        (text, [used.index(token) for token in ids])
        for text, ids in zip(texts, encoded, strict=True)
    ]
    return {"tokens": [vocabulary.text(token) for token in used], "vectors": vectors}


def main() -> None:
    folder = Path(sys.argv[1])
    known = json.loads(RECORDED.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as name:
        llama = bindings(Path(name))
        quiet = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(quiet, None)
        llama.llama_backend_init()

        def encoder(name: str) -> Encoder:
            return Encoder(llama, folder / f"ggml-vocab-{name}.gguf")

        texts = [text for text, _ in known["wordpiece"]["vectors"]]
        recorded = {"wordpiece": word_pieces(encoder("bert-bge"), texts), "whole": {}}
        for name, vectors in known["whole"].items():
            vocabulary = encoder(name)
            recorded["whole"][name] = [(text, vocabulary.encode(text)) for text, _ in vectors]
    RECORDED.write_text(json.dumps(recorded) + "\n", "utf-8")


if __name__ == "__main__":
    main()
