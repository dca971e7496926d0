"""Logits and rows of a tiny Llama 3.2 Vision by transformers, for `tests/models/test_mllama.py`.

Needs transformers with torch. Weights are made from the names of published files::

    python tests/data/make_mllama.py tests/data/mllama.npz

Published code gives attention of 0 to tokens before the first picture. Transformers 5.24 lets them
attend to all pictures, even later ones (huggingface/transformers, issue 39379), so that is undone
here. Where a text begins with its picture, the model is as transformers has it.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers.models.mllama import modeling_mllama, processing_mllama
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.data.recording import IMAGE, save_recorded, tokenize
from tests.data.tower_weights import make_weights, picture

TILE, ROWS, GREEDY = 28, 17, 8
# A picture of one tile, two below each other, three in a row, and four.
SIZES = {"a": (20, 25), "b": (60, 22), "c": (24, 90), "d": (55, 50)}
CASES = {
    "none": ("in the a in a", ""),
    "first": ("<|image|> in the", "b"),
    "one": ("in the <|image|> in a", "a"),
    "two": ("the <|image|> in the<|image|> a", "cd"),
    "pair": ("in<|image|><|image|> the <|image|>in", "abd"),
}
# Published names, by those of transformers 5.
NAMES = (
    (r"^model\.language_model\.", "language_model.model."),
    (r"^lm_head", "language_model.lm_head"),
    (r"^model\.(vision_model|multi_modal)", r"\1"),
)


def make_model(folder):
    text = {
        "vocab_size": IMAGE, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-4,
        "cross_attention_layers": [1, 3], "max_position_embeddings": 256, "pad_token_id": 0,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_global_layers": 2,
        "attention_heads": 2, "image_size": TILE, "patch_size": 7, "vision_output_dim": 48,
        "intermediate_layers_indices": [0, 2], "norm_eps": 1e-4,
    }  # fmt: skip
    config = tf.MllamaConfig(text_config=text, vision_config=vision, image_token_index=IMAGE)
    kind = tf.MllamaForConditionalGeneration
    kind._from_config(config).float().save_pretrained(folder)
    file = Path(folder) / "model.safetensors"
    shapes = {}
    for name, values in load_file(file).items():
        for old, new in NAMES:
            name = re.sub(old, new, name)
        shapes[name] = values.shape
    save_file(make_weights(shapes), file, {"format": "pt"})
    model = kind.from_pretrained(folder, attn_implementation="eager").float().eval()
    return model, shapes, json.loads((Path(folder) / "config.json").read_text())


def hide_pictures(model):
    """Give attention of 0 to tokens before the first picture."""

    def note(layer, args, kwargs):
        layer.cross_attn.mask = kwargs["full_text_row_masked_out_mask"]

    def hide(attention, args, found):
        return (found[0] if attention.mask is None else found[0] * attention.mask[:, 0], found[1])

    for layer in model.model.language_model.layers:
        if isinstance(layer, modeling_mllama.MllamaCrossAttentionDecoderLayer):
            layer.register_forward_pre_hook(note, with_kwargs=True)
            layer.cross_attn.register_forward_hook(hide)


@torch.no_grad()
def logits(model, processor, ids, pictures):
    inputs = {"input_ids": torch.tensor([ids]), "use_cache": False}
    if pictures:
        found = processor([[Image.fromarray(each) for each in pictures]], return_tensors="pt")
        counts = found.pop("num_tiles")
        masks = [processing_mllama.get_cross_attention_token_mask(ids, IMAGE)]
        mask = processing_mllama.convert_sparse_cross_attention_mask_to_dense(
            masks, num_tiles=counts, max_num_tiles=4, length=len(ids)
        )
        inputs |= {**found, "cross_attention_mask": torch.tensor(mask)}
    return model(**inputs).logits[0].numpy()


@torch.no_grad()
def rows(model, processor, shown):
    found = processor([[Image.fromarray(shown)]], return_tensors="pt")
    [[tiles]] = found.pop("num_tiles")
    states = model.model.vision_model(**found).last_hidden_state[0, 0, :tiles]
    return model.model.multi_modal_projector(states).reshape(-1, 32).numpy()


def main(path):
    processor = MllamaImageProcessorPil(size={"height": TILE, "width": TILE}, max_image_tiles=4)
    pictures = {name: picture(*size) for name, size in SIZES.items()}
    with tempfile.TemporaryDirectory() as folder:
        model, shapes, config = make_model(folder)
    arrays = {f"rows {name}": rows(model, processor, each) for name, each in pictures.items()}
    plain = {
        name: logits(
            model, processor, tokenize(text, "<|image|>"), [pictures[each] for each in shown]
        )
        for name, (text, shown) in CASES.items()
        if not re.match(r".+<\|image", text)
    }
    hide_pictures(model)
    for name, (text, shown) in CASES.items():
        ids, given = tokenize(text, "<|image|>"), [pictures[each] for each in shown]
        arrays[f"logits {name}"] = found = logits(model, processor, ids, given)
        assert name not in plain or np.array_equal(found, plain[name])
        for _ in range(GREEDY):
            ids.append(int(logits(model, processor, ids, given)[-1].argmax()))
        arrays[f"tokens {name}"] = np.array(ids, np.int32)
    save_recorded(
        path,
        arrays,
        config=config,
        processor=json.loads(processor.to_json_string()),
        shapes=shapes,
        sizes=SIZES,
        cases=CASES,
    )


if __name__ == "__main__":
    main(sys.argv[1])
