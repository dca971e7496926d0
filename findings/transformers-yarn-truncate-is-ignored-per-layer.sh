#!/bin/sh
# transformers: YaRN's `truncate: false` has no effect in models with rotary settings per kind of layer
#
# Version: transformers 5.24.0. `truncate` says whether the range of pairs between both kinds of scaling is
# rounded to whole pairs. The other settings are read from the section of the layer's kind, this one from
# what has only the sections. So Gemma 3, like other models whose layers have windows, always rounds,
# where Llama obeys; its config shows `truncate: False` all the same. Who converts such a folder and
# compares logits gets other numbers. (Installs torch, about 4 GB.)
. "$(dirname "$0")/common.sh"
install transformers==5.24.0 torch==2.13.0
export TRANSFORMERS_VERBOSITY=error
expect 'LlamaConfig: truncate False, frequencies differ from those with True
Gemma3TextConfig: truncate False, frequencies equal those with True' <<'END'
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

for kind, layers in ((LlamaConfig, None), (Gemma3TextConfig, "full_attention")):
    found = []
    for truncate in (True, False):
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        config = kind(rope_scaling={**scaling, "truncate": truncate}, head_dim=64)
        more = {"layer_type": layers} if layers else {}
        found.append(ROPE_INIT_FUNCTIONS["yarn"](config, "cpu", **more)[0])
        rope = config.rope_parameters
        shown = rope[layers] if layers else rope
    differ = "equal" if bool((found[0] == found[1]).all()) else "differ from"
    print(f"{kind.__name__}: truncate {shown['truncate']}, frequencies {differ} those with True")
END
