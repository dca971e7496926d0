"""Both files of the model: the language model, and its tower as llama.cpp's mmproj files are."""

from pathlib import Path

import gguf
import numpy as np
import story_gguf
import torch
from eyes_data import IMAGE
from eyes_model import EyesModel, TowerConfig
from story_tokenizer import SPECIALS
from tokenizers import Tokenizer

# CLIP's mean and deviation of colours.
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] in ('user', 'assistant') %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|end|>' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CARD = story_gguf.Card(
    "Eyes",
    "Names the colour and the shape in a picture",
    CHAT_TEMPLATE,
    (*SPECIALS, IMAGE),
)


def tower_path(path: Path) -> Path:
    """Return the path of the tower's file, where llama.cpp and this package look for it."""
    return path.with_name(f"{path.stem}-mmproj.gguf")


def save(path: Path, model: EyesModel, tokenizer: Tokenizer) -> None:
    """Write the language model in Q8_0, and the tower in F16 with vectors in F32."""
    story_gguf.save(path, model.text, tokenizer, CARD)
    writer = gguf.GGUFWriter(str(tower_path(path)), "clip")
    _add_metadata(writer, model)
    for name, weight in model.named_parameters():
        if name.startswith("text."):
            continue
        data = weight.detach().numpy().astype(np.float32)
        own = "v.class_embd" if name == "v.class_embd" else name
        # llama.cpp adds positions to rows in F32.
        small = data.ndim == 1 or "position" in name
        writer.add_tensor(own, data if small else data.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(path: Path) -> tuple[EyesModel, Tokenizer]:
    """Read files that `save` wrote; weights are dequantised to F32."""
    text, tokenizer = story_gguf.load(path, CARD)
    reader = gguf.GGUFReader(str(tower_path(path)))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    names = ("image_size", "patch_size", "embedding_length", "attention.head_count")
    names = (*names, "feed_forward_length", "block_count")
    image, patch, width, heads, inner, layers = (fields[f"clip.vision.{name}"] for name in names)
    model = EyesModel(TowerConfig(image, patch, width, heads, inner, layers), text.config)
    model.text.load_state_dict(text.state_dict())
    state = {t.name: torch.tensor(np.asarray(t.data, np.float32)) for t in reader.tensors}
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not unknown
    assert all(name.startswith("text.") for name in missing)
    return model, tokenizer


def _add_metadata(writer: gguf.GGUFWriter, model: EyesModel) -> None:
    config = model.config
    writer.add_name("Eyes")
    writer.add_description("The tower of a model that names colours and shapes")
    writer.add_license("MIT")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_string("clip.projector_type", "mlp")
    for name, value in {
        "has_text_encoder": False,
        "has_vision_encoder": True,
        "has_llava_projector": True,
        "use_gelu": False,
    }.items():
        writer.add_bool(f"clip.{name}", value)
    for name, value in {
        "image_size": config.image,
        "patch_size": config.patch,
        "embedding_length": config.width,
        "feed_forward_length": config.inner,
        "projection_dim": model.text.config.hidden,
        "attention.head_count": config.heads,
        "block_count": config.layers,
    }.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", config.eps)
    writer.add_array("clip.vision.feature_layer", [config.layers])
    writer.add_array("clip.vision.image_mean", list(MEAN))
    writer.add_array("clip.vision.image_std", list(DEVIATION))
