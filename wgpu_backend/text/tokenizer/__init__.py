"""Tokenizers rebuilt from GGUF metadata.

In the order that text passes: ``tokenizer.py`` is the public class; ``fragments.py`` splits text at
special tokens; ``encoders.py`` encodes the stretches between them, in words that
``pretokenizers.py`` splits; ``pieces.py`` turns tokens back into text. ``vocabulary.py`` and
``special.py`` read the file. ``library.py`` runs a tokenizer.json. ``shield.py`` prevents users'
texts from spelling control tokens. ``clip.py`` is the tokenizer of CLIP, which GGUF has no name
for.
"""

from wgpu_backend.text.tokenizer.pieces import Detokenizer
from wgpu_backend.text.tokenizer.pretokenizers import PRETOKENIZERS
from wgpu_backend.text.tokenizer.tokenizer import Tokenizer

__all__ = ["PRETOKENIZERS", "Detokenizer", "Tokenizer"]
