#!/bin/sh
# transformers: OLMo 3 drops YaRN if the configuration spells it `type` and not `rope_type`
#
# Version: transformers 5.24.0. Both spellings are in published folders, and most classes take both.
# OLMo 3 has parameters per kind of layer: there `type` stays beside `rope_type: default`, and the model
# runs without scaling; a warning speaks of unrecognised keys.
. "$(dirname "$0")/common.sh"
install transformers==5.24.0
export TRANSFORMERS_VERBOSITY=error
expect 'LlamaConfig, rope_type: yarn
LlamaConfig, type: yarn
Olmo3Config, rope_type: yarn
Olmo3Config, type: default' <<'END'
from transformers import LlamaConfig, Olmo3Config

for kind in (LlamaConfig, Olmo3Config):
    for key in ("rope_type", "type"):
        scaling = {key: "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        rope = kind(rope_scaling=scaling, max_position_embeddings=256).rope_parameters
        rope = rope.get("full_attention", rope)
        print(f"{kind.__name__}, {key}: {rope['rope_type']}")
END
