#!/bin/sh
# tokenizers: BPE without an unknown token drops what it does not know
#
# Version: tokenizers 0.23.3. A letter outside the vocabulary is an error of WordLevel ("Missing [UNK] token"). BPE
# without `unk_token` and byte fallback leaves it out: no token, no error. What is left is merged, so "a-b" is the
# token ab, whose offsets say two letters. Vocabularies trained with `BpeTrainer` have no unknown token unless
# it is asked for.
. "$(dirname "$0")/common.sh"
install tokenizers==0.23.3
expect "trained on 'abc': 2+2 -> [], a-b -> ['ab'] at [(0, 2)]
the same with unk_token: a-b -> ['a', '[UNK]', 'b']
WordLevel: WordLevel error: Missing [UNK] token from the vocabulary" <<'END'
from tokenizers import Tokenizer, models, trainers


def trained(**options):
    made = Tokenizer(models.BPE(**options))
    trainer = trainers.BpeTrainer(special_tokens=[*options.values()], vocab_size=4, show_progress=False)
    made.train_from_iterator(["abc"], trainer)
    return made


known, unknown = trained(), trained(unk_token="[UNK]")
found = known.encode("a-b")
print(f"trained on 'abc': 2+2 -> {known.encode('2+2').tokens}, a-b -> {found.tokens} at {found.offsets}")
print(f"the same with unk_token: a-b -> {unknown.encode('a-b').tokens}")
try:
    Tokenizer(models.WordLevel({"a": 0})).encode("b")
except Exception as error:
    print("WordLevel:", error)
END
