"""Story models as GGUF files: written for any Llama runtime, read back for the checks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from story_model import StoryConfig, StoryModel
from story_tokenizer import BEGIN, CHAT_TEMPLATE, END, SPECIALS, byte_level
from tokenizers import AddedToken, Tokenizer, models

ARCHITECTURE = "llama"


@dataclass(frozen=True, slots=True)
class Card:
    """Name, description, chat template and special tokens of a model."""

    name: str
    description: str
    template: str
    specials: Sequence[str]


STORY = Card(
    "Story", "Tells short children's stories about a hero and a thing", CHAT_TEMPLATE, SPECIALS
)


def tensor_name(parameter: str) -> str:
    """Return GGUF's name of a parameter: modules are named for it except `attention`."""
    return parameter.replace(".attention.", ".")


def save(path: Path, model: StoryModel, tokenizer: Tokenizer, card: Card = STORY) -> None:
    """Write the model with its tokenizer; matrices as Q8_0, norms as F32."""
    writer = gguf.GGUFWriter(str(path), ARCHITECTURE)
    _add_metadata(writer, model.config, card)
    _add_tokenizer(writer, tokenizer, card)
    for name, weight in model.named_parameters():
        data = weight.detach().numpy().astype(np.float32)
        if data.ndim == 1:
            writer.add_tensor(tensor_name(name), data)
            continue
        q8 = GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor_name(name), gguf.quants.quantize(data, q8), raw_dtype=q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, config: StoryConfig, card: Card) -> None:
    writer.add_name(card.name)
    writer.add_description(card.description)
    writer.add_license("MIT")
    writer.add_languages(["en"])
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.feed_forward)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_vocab_size(config.vocab)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer, card: Card) -> None:
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [TokenType.CONTROL if token in card.specials else TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(_merges(tokenizer))
    writer.add_bos_token_id(ids[BEGIN])
    writer.add_eos_token_id(ids[END])
    writer.add_eot_token_id(ids[END])
    writer.add_add_bos_token(True)
    writer.add_chat_template(card.template)


def _merges(tokenizer: Tokenizer) -> list[str]:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [" ".join(pair) for pair in merges]


def load(path: Path, card: Card = STORY) -> tuple[StoryModel, Tokenizer]:
    """Read a file that `save` wrote; weights are dequantised to F32."""
    reader = gguf.GGUFReader(str(path))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    model = StoryModel(_config(fields))
    arrays = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in reader.tensors
    }
    state = {name: torch.tensor(arrays[tensor_name(name)]) for name in model.state_dict()}
    model.load_state_dict(state)
    return model.eval(), _tokenizer(fields, card)


def _config(fields: dict) -> StoryConfig:
    def get(name: str) -> int:
        return fields[f"{ARCHITECTURE}.{name}"]

    return StoryConfig(
        vocab=get("vocab_size"),
        context=get("context_length"),
        hidden=get("embedding_length"),
        feed_forward=get("feed_forward_length"),
        layers=get("block_count"),
        heads=get("attention.head_count"),
        kv_heads=get("attention.head_count_kv"),
        norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_base=get("rope.freq_base"),
    )


def _tokenizer(fields: dict, card: Card) -> Tokenizer:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = byte_level(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in card.specials])
    return tokenizer
