"""Names in files of the models' authors, which differ from those of diffusers.

A tensor may combine the rows of several of ours. GGUF files of transformers have these names, and
so have adapters that were not made with diffusers.
"""

from __future__ import annotations

from dataclasses import dataclass

_BLOCK = r"double_blocks\.(\d+)\."
_SINGLE = r"single_blocks\.(\d+)\."
_OURS = r"transformer_blocks.\1."


@dataclass(frozen=True, slots=True)
class Original:
    """A rule for tensors whose names have one pattern.

    Parameters
    ----------
    pattern : str
        Regular expression of the whole name.
    parts : tuple of str
        Replacements: our names, in the order of their rows.
    turned : bool
        Whether the first half of the rows is our second.
    """

    pattern: str
    parts: tuple[str, ...]
    turned: bool = False


def _embedders(where: str) -> list[Original]:
    """Return the rules of the embedders of timestep and guidance."""
    names = (("time_in", "timestep_embedder"), ("guidance_in", "guidance_embedder"))
    layers = (("in_layer", "linear_1"), ("out_layer", "linear_2"))
    return [
        Original(rf"{theirs}\.{layer}\.(.*)", (rf"{where}.{ours}.{linear}.\1",))
        for theirs, ours in names
        for layer, linear in layers
    ]


def _attention() -> list[Original]:
    """Return the rules of attention in blocks of two streams, and of norms in those of one."""
    found: list[Original] = []
    for stream, added, out in (("img", "to_{}", "to_out.0"), ("txt", "add_{}_proj", "to_add_out")):
        fused = tuple(rf"{_OURS}attn.{added.format(c)}.\2" for c in "qkv")
        found.append(Original(rf"{_BLOCK}{stream}_attn\.qkv\.(.*)", fused))
        found.append(Original(rf"{_BLOCK}{stream}_attn\.proj\.(.*)", (rf"{_OURS}attn.{out}.\2",)))
        norm = "norm" if stream == "img" else "norm_added"
        found += [
            Original(
                rf"{_BLOCK}{stream}_attn\.norm\.{name}_norm\.(?:scale|weight)",
                (rf"{_OURS}attn.{norm}_{name[0]}.weight",),
            )
            for name in ("query", "key")
        ]
    return found + [
        Original(
            rf"{_SINGLE}norm\.{name}_norm\.(?:scale|weight)",
            (rf"single_{_OURS}attn.norm_{name[0]}.weight",),
        )
        for name in ("query", "key")
    ]


def _ends() -> list[Original]:
    """Return the rules of the first and last layers."""
    return [
        Original(r"img_in\.(.*)", (r"x_embedder.\1",)),
        Original(r"txt_in\.(.*)", (r"context_embedder.\1",)),
        Original(r"final_layer\.linear\.(.*)", (r"proj_out.\1",)),
        Original(r"final_layer\.adaLN_modulation\.1\.(.*)", (r"norm_out.linear.\1",), turned=True),
    ]


FLUX = (
    *_ends(),
    *_embedders("time_text_embed"),
    *_attention(),
    Original(r"vector_in\.in_layer\.(.*)", (r"time_text_embed.text_embedder.linear_1.\1",)),
    Original(r"vector_in\.out_layer\.(.*)", (r"time_text_embed.text_embedder.linear_2.\1",)),
    Original(rf"{_BLOCK}img_mod\.lin\.(.*)", (rf"{_OURS}norm1.linear.\2",)),
    Original(rf"{_BLOCK}txt_mod\.lin\.(.*)", (rf"{_OURS}norm1_context.linear.\2",)),
    Original(rf"{_BLOCK}img_mlp\.0\.(.*)", (rf"{_OURS}ff.net.0.proj.\2",)),
    Original(rf"{_BLOCK}img_mlp\.2\.(.*)", (rf"{_OURS}ff.net.2.\2",)),
    Original(rf"{_BLOCK}txt_mlp\.0\.(.*)", (rf"{_OURS}ff_context.net.0.proj.\2",)),
    Original(rf"{_BLOCK}txt_mlp\.2\.(.*)", (rf"{_OURS}ff_context.net.2.\2",)),
    Original(rf"{_SINGLE}modulation\.lin\.(.*)", (rf"single_{_OURS}norm.linear.\2",)),
    Original(rf"{_SINGLE}linear2\.(.*)", (rf"single_{_OURS}proj_out.\2",)),
    Original(
        rf"{_SINGLE}linear1\.(.*)",
        (*(rf"single_{_OURS}attn.to_{c}.\2" for c in "qkv"), rf"single_{_OURS}proj_mlp.\2"),
    ),
)
"""FLUX.1."""

FLUX2 = (
    *_ends(),
    *_embedders("time_guidance_embed"),
    *_attention(),
    Original(r"(double_stream_modulation_(?:img|txt))\.lin\.(.*)", (r"\1.linear.\2",)),
    Original(r"single_stream_modulation\.lin\.(.*)", (r"single_stream_modulation.linear.\1",)),
    Original(rf"{_BLOCK}img_mlp\.0\.(.*)", (rf"{_OURS}ff.linear_in.\2",)),
    Original(rf"{_BLOCK}img_mlp\.2\.(.*)", (rf"{_OURS}ff.linear_out.\2",)),
    Original(rf"{_BLOCK}txt_mlp\.0\.(.*)", (rf"{_OURS}ff_context.linear_in.\2",)),
    Original(rf"{_BLOCK}txt_mlp\.2\.(.*)", (rf"{_OURS}ff_context.linear_out.\2",)),
    Original(rf"{_SINGLE}linear1\.(.*)", (rf"single_{_OURS}attn.to_qkv_mlp_proj.\2",)),
    Original(rf"{_SINGLE}linear2\.(.*)", (rf"single_{_OURS}attn.to_out.\2",)),
)
"""FLUX.2."""

Z_IMAGE = (
    Original(r"x_embedder\.(.*)", (r"all_x_embedder.2-1.\1",)),
    Original(r"final_layer\.(.*)", (r"all_final_layer.2-1.\1",)),
    Original(r"(.*\.attention)\.qkv\.(.*)", tuple(rf"\1.to_{c}.\2" for c in "qkv")),
    Original(r"(.*\.attention)\.out\.(.*)", (r"\1.to_out.0.\2",)),
    Original(r"(.*\.attention)\.([qk])_norm\.(.*)", (r"\1.norm_\2.\3",)),
)
"""Z-Image."""
