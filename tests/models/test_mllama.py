"""Llama 3.2 Vision, whose layers attend to pictures: transformers' logits, and shared prefixes.

Recorded by `tests/data/make_mllama.py`, with transformers 5.24 and Pillow 13.
"""

import json
import re

import numpy as np
import pytest
from gguf import GGUFWriter

import wgpu_backend as wb
from tests.data.recording import IMAGE
from tests.files.huggingface.folders import MERGES, VOCABULARY, write_folder
from tests.models.recorded import LIMIT, Recorded, ask_greedily
from wgpu_backend.engine.media import Part
from wgpu_backend.errors import CacheFull, ContextError, ModelError, OptionError
from wgpu_backend.files.huggingface.create import create
from wgpu_backend.testing import nmse

DEVICES = ["cpu", pytest.param("software", marks=pytest.mark.gpu)]
LLAMA = Recorded("mllama", "<|image|>")
EXACT = {"exact": True, "kv_dtype": "f32", "num_ctx": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return LLAMA.write(tmp_path_factory.mktemp("mllama") / "hf")


# The names of Ollama's converter.
OLLAMA = (
    (r"^language_model\.(model\.)?", ""),
    (r"embed_tokens", "token_embd"),
    (r"^norm", "output_norm"),
    (r"^lm_head", "output"),
    (r"^layers", "blk"),
    (r"^multi_modal_projector", "mm.0"),
    (r"^vision_model", "v"),
    (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.o_proj", "attn_output"),
    (r"gate_(attn|ffn)$", r"\1_gate"),
    (r"cross_attn\.", "cross_attn_"),
    (r"class_embedding", "class_embd"),
    (r"patch_embedding", "patch_embd"),
    (r"gated_positional_embedding\.tile_embedding", "tile_position_embd"),
    (r"gated_positional_embedding\.embedding", "position_embd.weight"),
    (r"gated_positional_embedding", "position_embd"),
    (r"(pre|post)_tile_positional_embedding(\.embedding)?", r"\1_tile_position_embd"),
    (r"layernorm_(pre|post)", r"\1_ln"),
    (r"global_transformer\.layers", "global.blk"),
    (r"transformer\.layers", "blk"),
    (r"input_layernorm", "attn_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"mlp\.fc1", "ffn_up"),
    (r"mlp\.fc2", "ffn_down"),
    (r"mlp\.(gate|up|down)_proj", r"ffn_\1"),
)


def ollama_s(name, values):
    """Yield a weight's names and values in a file of Ollama's converter."""
    for pattern, to in OLLAMA:
        name = re.sub(pattern, to, name)
    heads = {"v": 2, "attn_q": 4, "attn_k": 2}
    if re.search(r"(?<!cross_)attn_[qk]\.weight$", name):
        count = heads["v" if name.startswith("v.") else name.split(".")[-2]]
        halves = values.reshape(count, 2, -1, values.shape[-1])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    if name == "v.position_embd.gate":
        yield "v.tile_position_embd.gate", np.tanh(values)
        values = 1 - np.tanh(values)
    elif name.startswith("v.") and name.endswith("gate"):
        values = np.tanh(values)
    yield name, values


def write_ollama_s(path):
    config = LLAMA.facts["config"]
    text, vision = config["text_config"], config["vision_config"]
    writer = GGUFWriter(path, "mllama")
    numbers = {
        "block_count": text["num_hidden_layers"],
        "context_length": text["max_position_embeddings"],
        "embedding_length": text["hidden_size"],
        "feed_forward_length": text["intermediate_size"],
        "attention.head_count": text["num_attention_heads"],
        "attention.head_count_kv": text["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": text["rms_norm_eps"],
        "attention.cross_attention_layers": text["cross_attention_layers"],
        "rope.freq_base": 10000.0,
        "vision.block_count": vision["num_hidden_layers"],
        "vision.global.block_count": vision["num_global_layers"],
        "vision.intermediate_layers_indices": vision["intermediate_layers_indices"],
        "vision.embedding_length": vision["hidden_size"],
        "vision.feed_forward_length": vision["intermediate_size"],
        "vision.attention.head_count": vision["attention_heads"],
        "vision.attention.layer_norm_epsilon": vision["norm_eps"],
        "vision.image_size": vision["image_size"],
        "vision.patch_size": vision["patch_size"],
        "vision.max_num_tiles": vision["max_num_tiles"],
    }
    for key, value in numbers.items():
        kind = {list: writer.add_array, float: writer.add_float32, int: writer.add_uint32}
        kind[type(value)](f"mllama.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*VOCABULARY, "<|image|>"])
    writer.add_token_types([3, 3, *[1] * (IMAGE - 2), 3])
    writer.add_token_merges(MERGES)
    writer.add_add_bos_token(False)
    for name, values in LLAMA.weights().items():
        for to, changed in ollama_s(name, values):
            writer.add_tensor(to, np.ascontiguousarray(changed, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("device", DEVICES)
def test_logits_and_rows_are_those_of_transformers(folder, device):
    with wb.load(folder, device=device, **EXACT) as model:
        LLAMA.require_logits(model)
        for name in LLAMA.facts["sizes"]:
            LLAMA.require_rows(model, name)


def test_ollama_s_file_has_the_same_logits(tmp_path):
    path = write_ollama_s(tmp_path / "model.gguf")
    with wb.load(path, device="cpu", **EXACT) as model:
        # Its converter leaves the colours' statistics out; the published ones are CLIP's.
        assert model.towers.get("image").statistics[0][0] == pytest.approx(0.48145466)
        facts = LLAMA.facts["processor"]
        model.towers.get("image").statistics = facts["image_mean"], facts["image_std"]
        LLAMA.require_logits(model)


def test_create_writes_a_model_and_its_tower(folder, tmp_path):
    report = create(tmp_path / "made.gguf", folder)
    assert report.tower == tmp_path / "mmproj-made.gguf"
    with wb.load(report.path, device="cpu", **EXACT) as model:
        LLAMA.require_logits(model)


# The names of Ollama's first converter in its file for the tower alone, after those of `OLLAMA`.
FIRST = (
    (r"attn_output", "attn_out"),
    (r"attn_norm", "ln1"),
    (r"ffn_norm", "ln2"),
    (r"ffn_up", "ffn_first"),
    (r"ffn_down", "ffn_up"),
    (r"ffn_first", "ffn_down"),
)


def test_ollama_s_first_files_of_a_model_and_a_tower(folder, tmp_path):
    config = LLAMA.facts["config"]["vision_config"]
    writer = GGUFWriter(tmp_path / "projector", "mllama")
    numbers = {
        "embedding_length": config["hidden_size"],
        "attention.head_count": config["attention_heads"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "global.block_count": config["num_global_layers"],
        "max_num_tiles": config["max_num_tiles"],
        "image_size": config["image_size"],
        "patch_size": config["patch_size"],
        "projection_dim": 32,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"mllama.vision.{key}", value)
    writer.add_float32("mllama.vision.attention.layer_norm_epsilon", config["norm_eps"])
    layers = config["intermediate_layers_indices"]
    writer.add_array("mllama.vision.intermediate_layers_indices", layers)
    for name, values in LLAMA.weights().items():
        for to, changed in ollama_s(name, values):
            if not to.startswith(("v.", "mm.")):
                continue
            for pattern, renamed in FIRST:
                to = re.sub(pattern, renamed, to)
            writer.add_tensor(to, np.ascontiguousarray(changed, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = create(tmp_path / "text.gguf", folder)
    made.tower.unlink()
    mmproj = tmp_path / "projector"
    with wb.load(made.path, device="cpu", mmproj=mmproj, **EXACT) as model:
        facts = LLAMA.facts["processor"]
        model.towers.get("image").statistics = facts["image_mean"], facts["image_std"]
        LLAMA.require_logits(model)
    with pytest.raises(ModelError):
        wb.load(mmproj, device="cpu")


@pytest.mark.parametrize("exact", [True, False])
def test_one_batch_of_texts_with_and_without_pictures(folder, exact):
    """Each answer is transformers', whatever the pictures of others and however passes are cut."""
    options = {**EXACT, "exact": exact}
    with wb.load(folder, device="cpu", num_parallel=3, **options) as model:
        for _ in range(2):
            with wb.Engine(model, num_parallel=3) as engine:
                LLAMA.require_answers(engine, model)


def test_a_second_question_reads_the_picture_from_the_cache(folder, tower_runs):
    def question(model, text, name):
        start = "the <|image|>" + " in the a" * 8
        return model.towers.raw(model.prompter, start + text, [Part("image", LLAMA.shown(name))])

    with wb.load(folder, device="cpu", kv_dtype="f32", num_ctx=128, num_parallel=2) as model:
        texts = [(" in", "d"), (" the", "d"), (" a", "d"), (" the", "c")]
        alone = []
        for text, name in texts:
            prompt = question(model, text, name)
            inserted = model.towers.insert(prompt.placed)
            rows = model._rows("logits", prompt.tokens, model._logits, 128, inserted=inserted)
            alone.append(int(rows[-1].argmax()))
        model.towers._rows._rows.clear()
        tower_runs.clear()
        found, cached = [], []
        with wb.Engine(model, num_parallel=2) as engine:
            for text, name in texts:
                result = engine.submit(ask_greedily(question(model, text, name), 1)).result()
                found.append(result.choices[0].tokens[0])
                cached.append(result.usage.cached_tokens)
        assert found == alone
        assert len(tower_runs) == 2
        # All but the last words, and nothing after another picture.
        assert cached[0] == cached[3] == 0
        assert min(cached[1], cached[2]) > 32


def test_pictures_of_a_text_model_without_a_tower(folder, tmp_path):
    write_ollama_s(tmp_path / "all.gguf")
    bare = {k: v for k, v in LLAMA.weights().items() if k.startswith("language_model")}
    path = write_folder(tmp_path / "bare", bare)
    (path / "config.json").write_text((folder / "config.json").read_text())
    with wb.load(path, device="cpu", **EXACT) as model:
        wanted = LLAMA.arrays["logits none"]
        assert nmse(model.logits(LLAMA.cases["none"][0]), wanted) < LIMIT
        with pytest.raises(OptionError, match="it has no tower for pictures"):
            model.logits("the", images=[LLAMA.shown("a")])


def test_layers_that_the_file_does_not_have(folder, tmp_path):
    path = write_folder(tmp_path / "wrong", LLAMA.weights())
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["cross_attention_layers"] = [1, 4]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"cross_attention_layers is \[1, 4\], needs some of 0"):
        wb.load(path, device="cpu")


def test_more_pictures_at_once_than_the_cache_has_room_for(folder):
    """The request fails with the reason, and the next one is answered."""
    with (
        wb.load(folder, device="cpu", num_parallel=1, **EXACT) as model,
        wb.Engine(model, num_parallel=1) as engine,
    ):
        parts = [Part("image", LLAMA.shown("d"))] * 9
        many = model.towers.raw(model.prompter, "<|image|>" * 9 + "in", parts)
        with pytest.raises(CacheFull, match="for pictures"):
            engine.submit(ask_greedily(many)).result()
        result = engine.submit(ask_greedily(LLAMA.ask(model, "one"))).result()
        assert [*result.choices[0].tokens] == LLAMA.tokens("one")


def test_a_saved_sequence_keeps_its_pictures(folder):
    with wb.load(folder, device="cpu", **EXACT) as model:
        text, names = LLAMA.cases["pair"]
        wanted = model.logits(text, images=[LLAMA.shown(name) for name in names])
        prompt = LLAMA.ask(model, "pair")
        inserted = model.towers.insert(prompt.placed)
        sequence = model._session.sequence
        saved = model.cache.save(sequence)
        model.cache.remove(sequence)
        model.cache.restore(sequence, saved)
        rest = prompt.tokens[-1:]
        # The last token again, after the restored ones.
        model.cache.remove(sequence, len(prompt.tokens) - 1)
        work = inserted.work(wb.nn.batch.Work(sequence, rest, (0,)), len(prompt.tokens) - 1)
        found = model.runner.run([work], model._logits, {}).wait()[0][0, :IMAGE]
        assert nmse(found, wanted[-1]) < LIMIT
        model.cache.remove(sequence)
        part = saved[-1]
        with pytest.raises(ContextError, match="positions of shape"):
            model.cache.parts[-1].require_part(
                type(part)(part.length, part.runs, part.rows[: len(model.cache.parts[-1].tensors)])
            )
