"""Names of the first Stable Diffusion's modules, which adapters for XL still have.

There the UNet is a row of ``input_blocks``, a ``middle_block`` and ``output_blocks``, each with a
residual block as its first part and attention as its second; levels are three blocks long.
"""

from __future__ import annotations

import re

_RESNET = {
    "in_layers_2": "conv1",
    "emb_layers_1": "time_emb_proj",
    "out_layers_3": "conv2",
    "skip_connection": "conv_shortcut",
}
_OTHERS = {
    "time_embed_0": "time_embedding_linear_1",
    "time_embed_2": "time_embedding_linear_2",
    "label_emb_0_0": "add_embedding_linear_1",
    "label_emb_0_2": "add_embedding_linear_2",
    "input_blocks_0_0": "conv_in",
    "out_2": "conv_out",
}
_MIDDLE = ("resnets_0", "attentions_0", "resnets_1")


def diffusers_name(module: str) -> str:
    """Name of a module as diffusers has it, with underscores; as it is, where it has no other."""
    if module in _OTHERS:
        return _OTHERS[module]
    match = re.fullmatch(r"(input|output)_blocks_(\d+)_(\d)_(.*)", module)
    if match:
        way, block, part, rest = match[1], int(match[2]), int(match[3]), match[4]
        return _of_level(way, block - (way == "input"), part, rest)
    match = re.fullmatch(r"middle_block_([012])_(.*)", module)
    if match:
        return f"mid_block_{_MIDDLE[int(match[1])]}_{_RESNET.get(match[2], match[2])}"
    return module


def _of_level(way: str, number: int, part: int, rest: str) -> str:
    level, layer = divmod(number, 3)
    side = "down" if way == "input" else "up"
    if rest == "op":
        return f"{side}_blocks_{level}_downsamplers_0_conv"
    if rest == "conv":
        return f"{side}_blocks_{level}_upsamplers_0_conv"
    kind = "attentions" if part else "resnets"
    return f"{side}_blocks_{level}_{kind}_{layer}_{_RESNET.get(rest, rest)}"
