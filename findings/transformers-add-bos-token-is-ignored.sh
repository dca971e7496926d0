#!/bin/sh
# transformers: `add_bos_token: true` of tokenizer_config.json puts no BOS before a text
#
# Version: transformers 5.24.0. Where a folder has a tokenizer.json, its post-processor alone decides
# what stands around a text. gguf-py's SpecialVocab reads `add_bos_token`, so that a GGUF file made of the
# folder begins texts with BOS where transformers does not. The attribute says False in both cases.
. "$(dirname "$0")/common.sh"
install transformers==5.24.0
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
expect 'add_bos_token true: ids [0, 1], attribute False
add_bos_token false: ids [0, 1], attribute False' <<'END'
import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "<s>": 2}, []))
tokenizer.add_special_tokens(["<s>"])
for value in (True, False):
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        config = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "add_bos_token": value}
        Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
        loaded = AutoTokenizer.from_pretrained(folder)
        ids = loaded("ab")["input_ids"]
        print(f"add_bos_token {str(value).lower()}: ids {ids}, attribute {loaded.add_bos_token}")
END
