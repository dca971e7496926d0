"""Tokenizers read from files, and the file that an error names."""

import pytest

from tests.builders import read_tokenizer, tiny_model
from wgpu_backend.errors import TokenizerError
from wgpu_backend.files.gguf.header import Header
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.text.tokenizer import Tokenizer


def test_errors_of_a_files_tokenizer_name_the_file(tmp_path):
    path = tiny_model(tmp_path / "tiny.gguf")
    with open_gguf(path) as file:
        assert Tokenizer.of_file(file).vocab_size == read_tokenizer(path).vocab_size
        keys = {**file.metadata, "tokenizer.ggml.eos_token_id": 99_999}
    other = GGUFFile(path, Header(3, 32, keys, {}, {}), b"")
    with pytest.raises(TokenizerError, match=r"tiny.gguf: tokenizer: .*eos_token_id is 99999"):
        Tokenizer.of_file(other)
