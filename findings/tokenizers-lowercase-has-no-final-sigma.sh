#!/bin/sh
# tokenizers: Lowercase writes a final sigma as one within a word
#
# Version: tokenizers 0.23.3. Unicode's lower case of a word ends in ς where the capitals end in Σ, as Python's
# and Rust's `lower` have it. `Lowercase` and `BertNormalizer` go letter by letter and write σ. So a Greek word in
# capitals is another token than the same word in small letters, and than what BERT's own Python tokenizer gives.
. "$(dirname "$0")/common.sh"
install tokenizers==0.23.3
expect 'Python: λόγος
Lowercase: λόγοσ
BertNormalizer: λόγοσ
tokens: λόγος -> [1], ΛΌΓΟΣ -> [0]' <<'END'
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

print("Python:", "ΛΌΓΟΣ".lower())
print("Lowercase:", normalizers.Lowercase().normalize_str("ΛΌΓΟΣ"))
print("BertNormalizer:", normalizers.BertNormalizer(strip_accents=False).normalize_str("ΛΌΓΟΣ"))
tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "λόγος": 1}, unk_token="[UNK]"))
tokenizer.normalizer = normalizers.Lowercase()
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
print("tokens:", ", ".join(f"{text} -> {tokenizer.encode(text).ids}" for text in ("λόγος", "ΛΌΓΟΣ")))
END
