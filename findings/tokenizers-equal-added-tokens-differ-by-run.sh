#!/bin/sh
# tokenizers: which of several added tokens matches a text changes from one process to the next
#
# Version: tokenizers 0.23.3. Added tokens with `normalized: true` are compared in their normalised form.
# Where a lowercasing normaliser makes two of them equal, the id that a text gets depends on the order of
# a hash table, which each process draws anew. Vocabularies that were extended twice have such tokens;
# training and inference then disagree at random. Other ids are possible in each run, hence 40 runs.
. "$(dirname "$0")/common.sh"
install tokenizers==0.23.3
cat >"$work/once.py" <<'END'
from tokenizers import AddedToken, Tokenizer, models, normalizers

tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, "[UNK]"))
tokenizer.normalizer = normalizers.Lowercase()
tokenizer.add_tokens([AddedToken(text, normalized=True) for text in ("ABC", "abc", "Abc")])
print(*tokenizer.encode("abc").ids)
END
export ONCE="$work/once.py"
expect 'ids of "abc" in 40 processes: 1, 2, 3' <<'END'
import os
import subprocess
import sys

run = [sys.executable, os.environ["ONCE"]]
seen = {subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() for _ in range(40)}
print('ids of "abc" in 40 processes:', ", ".join(sorted(seen)))
END
