"""More kinds for ``../shared/tools/tiny_towers.py``, with its commands and files.

Needs what that tool needs::

    python tests/data/tiny_more_towers.py make kimi-k2.5 FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL.Image import Resampling

sys.path.insert(0, str(Path(__file__).parents[3] / "shared" / "tools"))
import tiny_towers as tiny
from make_tower_greedy import choose, inputs
from tiny_towers import FF, VD, VFF, VH, K, text, tok

BICUBIC = Resampling.BICUBIC
KIMI = ["<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>",
        "<|kimi_k25_video_placeholder|>", "<|media_start|>"]  # fmt: skip


def kimi_config():
    from transformers import Kimi_K25Config

    kind = tiny.KINDS["kimi-k2.5"]
    words = text(
        model_type="deepseek_v3", rms_norm_eps=1e-6, q_lora_rank=48,
        num_attention_heads=2, num_key_value_heads=2,
        kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
        first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=FF, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.0, rope_interleave=True,
    )  # fmt: skip
    del words["head_dim"]
    vision = {
        "hidden_size": VD, "intermediate_size": VFF, "num_hidden_layers": 3,
        "num_attention_heads": VH, "pos_emb_height": 6, "pos_emb_width": 6, "patch_size": 14,
        "merge_kernel_size": [2, 2],
        "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
    }  # fmt: skip
    return Kimi_K25Config(
        text_config=words, vision_config=vision, projection_hidden_size=VD,
        image_token_id=tok(kind, KIMI[2]), video_token_id=tok(kind, KIMI[4]),
        vision_start_token_id=tok(kind, KIMI[0]), vision_end_token_id=tok(kind, KIMI[3]),
        tie_word_embeddings=False,
    )  # fmt: skip


WHOLE = f"{KIMI[0]}image{KIMI[1]}{KIMI[2]}{KIMI[3]}"
K("kimi-k2.5", "Kimi_K25ForConditionalGeneration", kimi_config,
  tiny.proc("Kimi_K25Processor", "Kimi_K25ImageProcessor", {"max_patches": 60},
            "Kimi_K25VideoProcessor"),
  KIMI, {"image_token": KIMI[2], "video_token": KIMI[4]}, WHOLE, KIMI[2],
  names=[(r"^language_model\.model\.blocks", "language_model.model.layers"),
         (r"^vision_tower\.encoder\.patch_embed", "vision_tower.patch_embed"),
         (r"^model\.mm_projector", "mm_projector")],
  mtmd=False, gguf=False)  # fmt: skip


class KimiVLProcessor:
    """Kimi-VL's published rule, which is not in transformers: black on the right and below."""

    patch, most, settings = 14, 24, {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def save_pretrained(self, folder):
        self.tokenizer.save_pretrained(folder)
        more = {**self.settings, "pad_input": True, "in_token_limit": self.most}
        Path(folder, "preprocessor_config.json").write_text(json.dumps(more))
        file = Path(folder, "config.json")
        config = json.loads(file.read_text())
        config["architectures"] = ["KimiVLForConditionalGeneration"]
        # Published settings, which transformers does not write and llama.cpp's converter reads.
        config["text_config"] |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
        vision = config["vision_config"]
        for axis in ("height", "width"):
            vision[f"init_pos_emb_{axis}"] = vision.pop(f"pos_emb_{axis}")
        file.write_text(json.dumps(config))

    def __call__(self, text, images, return_tensors):
        import torch

        step, found, grids = 2 * self.patch, [], []
        for image in images[0]:
            count = (image.width // self.patch) * (image.height // self.patch)
            if count > self.most:
                by = (self.most / count) ** 0.5
                image = image.resize((int(image.width * by), int(image.height * by)), BICUBIC)
            whole = np.zeros((-(-image.height // step) * step, -(-image.width // step) * step, 3))
            whole[: image.height, : image.width] = image
            values = torch.tensor((whole / 255).astype(np.float32)).permute(2, 0, 1)
            rows, columns = (side // self.patch for side in values.shape[1:])
            patches = ((values - 0.5) / 0.5).reshape(3, rows, self.patch, columns, self.patch)
            found.append(patches.permute(1, 3, 0, 2, 4).reshape(-1, 3, self.patch, self.patch))
            grids.append([1, rows, columns])
            text = [text[0].replace(KIMI[2], "<>" * (rows * columns // 4), 1)]
        ids = self.tokenizer(text[0].replace("<>", KIMI[2]), return_tensors="pt")["input_ids"]
        return {"input_ids": ids, "pixel_values": torch.cat(found),
                "image_grid_thw": torch.tensor(grids)}  # fmt: skip


K("kimi-vl", "Kimi_K25ForConditionalGeneration", kimi_config, lambda t, _: KimiVLProcessor(t),
  KIMI, {}, f"{KIMI[5]}image{KIMI[1]}{KIMI[2]}{KIMI[3]}", KIMI[2],
  names=[(r"^language_model\.model\.blocks", "language_model.model.layers"),
         (r"^vision_tower\.encoder\.patch_embed", "vision_tower.patch_embed"),
         (r"^(model\.)?mm_projector\.pre_norm", "multi_modal_projector.pre_norm"),
         (r"^mm_projector\.proj\.0", "multi_modal_projector.linear_1"),
         (r"^mm_projector\.proj\.2", "multi_modal_projector.linear_2")],
  mtmd=False)  # fmt: skip


GLIMMER = ["<|patch|>", "<|image_start|>", "<|image_end|>", "<|video|>", "<|vid_start|>",
           "<|vid_frame_separator|>", "<|vid_end|>"]  # fmt: skip


def glimmer_config():
    from transformers import MuseGlimmerConfig

    kind = tiny.KINDS["muse-glimmer"]
    words = tiny.text(num_hidden_layers=4, sliding_window=24, final_logit_softcapping=6.0)
    # Windows of 4 x 4 squares of patches; the last layer and each fourth have none.
    vision = tiny.vision(
        num_hidden_layers=5, pos_emb_height=8, pos_emb_width=8, patch_size=14,
        rope_parameters={"rope_type": "axial", "rope_theta": 10000.0},
    )  # fmt: skip
    return MuseGlimmerConfig(
        text_config=words, vision_config=vision, out_hidden_size=4 * VD, projector_hidden_size=FF,
        image_token_id=tok(kind, GLIMMER[0]), video_token_id=tok(kind, GLIMMER[3]),
    )  # fmt: skip


def glimmer_processor(tokenizer, _):
    from transformers import (
        MuseGlimmerImageProcessor,
        MuseGlimmerProcessor,
        MuseGlimmerVideoProcessor,
    )

    images = MuseGlimmerImageProcessor(max_image_tokens=60)
    return MuseGlimmerProcessor(images, MuseGlimmerVideoProcessor(), tokenizer)


K("muse-glimmer", "MuseGlimmerForConditionalGeneration", glimmer_config, glimmer_processor,
  GLIMMER, {}, GLIMMER[0], GLIMMER[0], mtmd=False)  # fmt: skip


GEMMA4 = tiny.KINDS["gemma4"]


def gemma4_config():
    config = GEMMA4.cfg()
    from transformers import Gemma4AudioConfig

    # Heads of 32; sounds of 3.3 s have 82 rows, of which each sees twelve.
    config.audio_config = Gemma4AudioConfig(
        hidden_size=VD, num_hidden_layers=2, num_attention_heads=VH, output_proj_dims=64,
        subsampling_conv_channels=[128, 8],
    )  # fmt: skip
    return config


def gemma4_weights(name, tensor, rng):
    """Bounds of values that some values exceed; other weights as the tool makes them."""
    if name.endswith(("_min", "_max")) and "audio" in name:
        return rng.uniform(1.5, 2.5, tuple(tensor.shape)) * (1 if name.endswith("max") else -1)
    return tiny.gemma4_init(name, tensor, rng)


K("gemma4-audio", "Gemma4ForConditionalGeneration", gemma4_config, GEMMA4.proc, GEMMA4.tokens,
  GEMMA4.roles | {"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"},
  "<|audio|>", "<|audio|>", **{k: getattr(GEMMA4, k) for k in ("patch", "post", "bos")},
  init=gemma4_weights, audio=True, mtmd=False, tower="model.audio_tower")  # fmt: skip


CPM = ["<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>", "<row>"]


def cpm_config():
    from transformers import Qwen2Config

    words = tiny.text(rms_norm_eps=1e-6)
    del words["head_dim"]
    return Qwen2Config(**words)


K("minicpm-v", "Qwen2ForCausalLM", cpm_config, None, CPM, {}, "(<image>./</image>)", CPM[6])


def write_mmproj(model, path):
    """Write a tower as llama.cpp's converter for MiniCPM-V does, which swaps two names."""
    import gguf

    writer = gguf.GGUFWriter(path, "clip")
    config = model.vpm.config
    for name in ("has_vision_encoder", "has_minicpmv_projector", "use_gelu"):
        writer.add_bool(f"clip.{name}", True)
    writer.add_bool("clip.has_text_encoder", False)
    writer.add_string("clip.projector_type", "resampler")
    writer.add_int32("clip.minicpmv_version", 3)
    writer.add_uint32("clip.minicpmv_query_num", len(model.resampler.query))
    for name, value in (
        ("image_size", 448), ("patch_size", config.patch_size), ("projection_dim", 0),
        ("embedding_length", config.hidden_size), ("block_count", config.num_hidden_layers),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_attention_heads),
    ):  # fmt: skip
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", config.layer_norm_eps)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5] * 3)
    for name, value in model.state_dict().items():
        values = value.float().numpy()
        if "in_proj_" in name:
            for part, each in zip("qkv", np.split(values, 3), strict=True):
                writer.add_tensor(name.replace("in_proj_", f"{part}."), each)
            continue
        if name == "resampler.proj":
            name, values = "resampler.proj.weight", np.ascontiguousarray(values.T)
            writer.add_tensor("resampler.pos_embed_k", np.zeros((4900, len(values)), np.float32))
        for old, new in (
            ("vpm.", "v."), ("encoder.layers", "blk"), ("embeddings.", ""), ("kv_proj", "kv"),
            ("out_proj", "out"), ("_proj", ""), ("self_attn.", "attn_"), ("layer_norm", "ln"),
            ("post_layernorm", "post_ln"), ("mlp.fc1", "ffn_down"), ("mlp.fc2", "ffn_up"),
            ("embedding", "embd"),
        ):  # fmt: skip
            name = name.replace(old, new)
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cut(image):
    """Return the pictures that the published rule makes of the two tiny ones, and the text."""
    # 400 x 250 pixels need no slices; 600 x 900 have ceil(2.69) = 3, in 2 to 4: 1 x 2 is nearest.

    def resize(width, height):
        return np.asarray(image.resize((width, height), BICUBIC))

    row = f"{CPM[0]}{CPM[6] * 4}{CPM[1]}"
    if image.size == (400, 250):
        return [resize(560, 350)], [], row
    refined = resize(518, 784)
    line = f"{CPM[2]}{CPM[6] * 4}{CPM[3]}"
    return [resize(364, 546)], [refined[:392], refined[392:]], f"{row}{line}\n{line}"


def make_cpm(folder, seed):
    """Make MiniCPM-V: its published code is not in transformers, its parts are."""
    import torch
    import transformers as tf
    from make_newer_towers import MiniCPM, make_weights
    from PIL import Image
    from safetensors.torch import save_file

    kind = tiny.KINDS["minicpm-v"]
    text = tiny.build(kind, seed)
    config = tf.Idefics2VisionConfig(
        hidden_size=VD, intermediate_size=VFF, num_hidden_layers=3, num_attention_heads=VH,
        image_size=980, patch_size=14, layer_norm_eps=1e-6,
    )  # fmt: skip
    tower = MiniCPM(config, 128, 4).eval()
    made = make_weights({k: tuple(v.shape) for k, v in tower.state_dict().items()})
    tower.load_state_dict({k: torch.tensor(v) for k, v in made.items()})
    hf, tokenizer = folder / "hf", tiny.tokenizer(kind)
    text.save_pretrained(hf)
    tokenizer.save_pretrained(hf)
    tiny.convert(kind, str(hf), str(folder / "model.gguf"), False)
    write_mmproj(tower, folder / "mmproj.gguf")
    words = {f"llm.{k}": v.clone() for k, v in text.state_dict().items()}
    save_file(words | tower.state_dict(), hf / "model.safetensors", {"format": "pt"})
    settings = json.loads((hf / "config.json").read_text())
    settings |= {"architectures": ["MiniCPMV"], "version": 2.6, "query_num": 4,
                 "vision_config": json.loads(config.to_json_string())}  # fmt: skip
    (hf / "config.json").write_text(json.dumps(settings))
    arrays, prompts, greedy = {}, {}, {}
    shown = [Image.fromarray(tiny.picture(i, size, seed))
             for i, size in enumerate(((400, 250), (600, 900)))]  # fmt: skip
    for i, image in enumerate(shown):
        image.save(folder / f"picture{i}.png")
    for count in (1, 2):
        prompt = kind.text.format(*[kind.place] * count, *[""] * 8)
        prompts[count] = whole = prompt
        rows = []
        for number, image in enumerate(shown[:count]):
            first, slices, spelled = cut(image)
            rows += [tower(first), *([tower(slices)] if slices else [])]
            spelled = f"{CPM[4]}{number}{CPM[5]}{spelled}"
            whole = whole.replace(kind.place, spelled, 1)
        ids = tokenizer(whole, return_tensors="pt")["input_ids"]
        media = ids[0] == tiny.tok(kind, CPM[6])
        rows = torch.cat(rows)
        tokens = []
        for step in range(16):
            x = text.get_input_embeddings()(ids)
            x[0, : len(media)][media] = rows
            logits = text(inputs_embeds=x, use_cache=False).logits[0]
            if not step:
                found = {"input_ids": ids[0], "media": media, "embeds": rows, "logits": logits}
                arrays |= {f"p{count}.{k}": v.numpy() for k, v in found.items()}
            tokens.append(int(logits[-1].argmax()))
            ids = torch.cat([ids, torch.tensor([[tokens[-1]]])], 1)
        greedy[count] = tokens
    np.savez_compressed(folder / "reference.npz", **arrays)
    (folder / "greedy.json").write_text(json.dumps(greedy))
    (folder / "reference.json").write_text(json.dumps({"prompts": prompts}))


# The end of a picture and what follows have embeddings of the towers', the last one of silence.
G3N = ["<start_of_image>", "<start_of_audio>", "<end_of_image>", "<image_soft_token>",
       "<end_of_audio>", "<audio_soft_token>"]  # fmt: skip


def gemma3n_config():
    from transformers import Gemma3nConfig

    boi, boa, eoi, image, eoa, audio = (tok(tiny.KINDS["gemma3n"], each) for each in G3N)
    # Layers of which a part of the values is 0, as in published models, then layers without.
    sparse = [0.95] * 4 + [0.5]
    count = 2 * len(sparse)
    words = text(
        rms_norm_eps=1e-6, num_hidden_layers=count, intermediate_size=[FF] * count,
        sliding_window=64, layer_types=[*["sliding_attention"] * 4, "full_attention"] * 2,
        num_kv_shared_layers=5, hidden_size_per_layer_input=32, vocab_size_per_layer_input=eoi,
        activation_sparsity_pattern=[*sparse, *[0.0] * len(sparse)], tie_word_embeddings=True,
        rope_parameters={"sliding_attention": tiny.rope(), "full_attention": tiny.rope(1e6)},
    )  # fmt: skip
    return Gemma3nConfig(
        text_config=words,
        vision_config={"vocab_offset": eoi, "vocab_size": eoa - eoi},
        audio_config={
            "hidden_size": VD, "conf_num_hidden_layers": 3, "conf_num_attention_heads": VH,
            "sscp_conv_channel_size": [128, 8], "vocab_offset": eoa, "vocab_size": tiny.V - eoa,
        },
        boi_token_id=boi, eoi_token_id=eoi, image_token_id=image, boa_token_id=boa,
        eoa_token_id=eoa, audio_token_id=audio,
    )  # fmt: skip


def gemma3n_processor(tokenizer, _):
    import transformers as tf

    images = tf.SiglipImageProcessorPil(
        size={"height": 512, "width": 512}, resample=Resampling.BILINEAR, do_normalize=False
    )
    return tf.Gemma3nProcessor(tf.Gemma3nAudioFeatureExtractor(), images, tokenizer)


def gemma3n_weights(name, tensor, rng):
    if "per_layer" in name:
        return None
    made = tiny.soft_embed(name, tensor, rng)
    if made is not None and name.endswith("embed_tokens.weight"):
        # So that no answer has tokens of towers.
        made[tok(tiny.KINDS["gemma3n"], G3N[2]) :] = 0
    return made


K("gemma3n", "Gemma3nForConditionalGeneration", gemma3n_config, gemma3n_processor, G3N,
  dict(zip(("boi_token", "boa_token", "eoi_token", "image_token", "eoa_token", "audio_token"),
           G3N, strict=True)), G3N[3], G3N[3], init=gemma3n_weights)  # fmt: skip


def make_gemma3n(folder, seed):
    """Make Gemma 3n with a small tower for pictures: prompts have a sound after each picture."""
    import wave

    import torch
    from make_newer_towers import small_mobilenet
    from PIL import Image
    from timm.models import _registry

    # Transformers makes the tower by this name.
    _registry._model_entrypoints["mobilenetv5_300m_enc"] = lambda **_: small_mobilenet()
    kind = tiny.KINDS["gemma3n"]
    model = tiny.build(kind, seed)
    processor = kind.proc(tiny.tokenizer(kind), None)
    tiny.save(kind, model, processor, str(folder / "hf"))
    pictures = [Image.fromarray(tiny.picture(i, None, seed)) for i in range(2)]
    # In a batch the shorter of two sounds is padded, which changes its last rows.
    sounds = [tiny.sound(i, 2.3, seed) for i in range(2)]
    for i, (shown, heard) in enumerate(zip(pictures, sounds, strict=True)):
        shown.save(folder / f"picture{i}.png")
        with wave.open(str(folder / f"sound{i}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(heard.tobytes())
    seen = {}

    def note(_, args, given):
        seen.setdefault("rows", given["inputs_embeds"][0])

    model.model.language_model.register_forward_pre_hook(note, with_kwargs=True)
    arrays, prompts, greedy = {}, {}, {}
    for count in (1, 2):
        prompt = "the picture " + f"{G3N[3]} sounds {G3N[5]} " * count + "you can see"
        given = processor(
            text=[prompt], images=[pictures[:count]], sampling_rate=16000, return_tensors="pt",
            audio=[each.astype(np.float32) / 32768 for each in sounds[:count]],
        )  # fmt: skip
        prompts[count], tokens = prompt, []
        ids = given["input_ids"][0]
        media = ids >= tok(kind, G3N[2])
        seen.clear()
        for step in range(16):
            logits = model(**given, use_cache=False).logits[0]
            if not step:
                # One number for all that towers make.
                plain = torch.where(media, tok(kind, G3N[3]), ids)
                found = {"input_ids": plain, "media": media, "embeds": seen["rows"][media],
                         "logits": logits}  # fmt: skip
                arrays |= {f"p{count}.{k}": v.numpy() for k, v in found.items()}
            tokens.append(int(logits[-1].argmax()))
            for name, value in (("input_ids", tokens[-1]), ("attention_mask", 1),
                                ("token_type_ids", 0)):  # fmt: skip
                if name in given:
                    given[name] = torch.cat([given[name], torch.tensor([[value]])], 1)
        greedy[count] = tokens
    np.savez_compressed(folder / "reference.npz", **arrays)
    (folder / "greedy.json").write_text(json.dumps(greedy))
    (folder / "reference.json").write_text(json.dumps({"prompts": prompts}))


OCR = "<image>"
K("deepseek-ocr", "DeepseekOCRForCausalLM", None, None, [OCR], {}, OCR, OCR)


def make_ocr(folder, seed):
    """Make DeepSeek-OCR of transformers' parts, see `make_deepseek_ocr.py`."""
    import make_deepseek_ocr as ocr
    import torch
    from PIL import Image
    from safetensors.numpy import save_file

    kind, count = tiny.KINDS["deepseek-ocr"], 16
    image, tokenizer = tok(kind, OCR), tiny.tokenizer(kind)
    # llama.cpp's converter knows no number of a layer above CLIP's last, and writes no list of
    # SAM's layers with attention to the whole: layer 2 is the first in published models.
    model, shapes, config = ocr.make_model(tiny.V, image, seed, layers=4, whole=2)
    hf = folder / "hf"
    tokenizer.save_pretrained(hf)
    save_file(ocr.make_weights(shapes, seed), hf / "model.safetensors", {"format": "pt"})
    (hf / "config.json").write_text(json.dumps(config))
    processor = {"tile_size": ocr.TILE, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (hf / "preprocessor_config.json").write_text(json.dumps(processor))
    for name, is_tower in (("model.gguf", False), ("mmproj.gguf", True)):
        tiny.convert(kind, str(hf), str(folder / name), is_tower)
    shown = [tiny.picture(i, size, seed) for i, size in enumerate(((70, 41), (55, 60)))]
    for i, pixels in enumerate(shown):
        Image.fromarray(pixels).save(folder / f"picture{i}.png")
    arrays, prompts, greedy = {}, {}, {}
    for pictures in (1, 2):
        prompts[pictures] = prompt = kind.text.format(*[OCR] * pictures, *[""] * 8)
        rows, ids = [model.encode(each) for each in shown[:pictures]], []
        given = iter(rows)
        for token in tokenizer(prompt)["input_ids"]:
            ids += [image] * len(next(given)) if token == image else [token]
        media, tokens = np.array(ids) == image, []
        for step in range(count):
            logits = model([*ids, *tokens], rows)
            if not step:
                found = {"embeds": torch.cat(rows).numpy(), "logits": logits.numpy(),
                         "input_ids": np.array(ids), "media": media}  # fmt: skip
                arrays |= {f"p{pictures}.{name}": each for name, each in found.items()}
            tokens.append(int(logits[-1].argmax()))
        greedy[pictures] = tokens
    np.savez_compressed(folder / "reference.npz", **arrays)
    (folder / "greedy.json").write_text(json.dumps(greedy))
    (folder / "reference.json").write_text(json.dumps({"prompts": prompts}))


MAKERS = {"deepseek-ocr": make_ocr, "gemma3n": make_gemma3n, "minicpm-v": make_cpm}


def write_greedy(name, folder, seed):
    """Write the tokens that transformers chooses after the prompts."""
    import torch

    arrays = np.load(folder / "reference.npz")
    with torch.no_grad():
        model = tiny.build(tiny.KINDS[name], seed)
        found = {i: choose(model, inputs(arrays, i, torch), torch) for i in (1, 2)}
    (folder / "greedy.json").write_text(json.dumps(found))


if __name__ == "__main__":
    # Transformers cannot load the folders of those that it does not have.
    reloads = tiny.reloads
    tiny.reloads = lambda kind, *rest: "-" if kind.name == "kimi-vl" else reloads(kind, *rest)
    seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0
    if sys.argv[2] in MAKERS:
        import torch

        tiny.libs()
        (made := Path(sys.argv[3])).mkdir(parents=True, exist_ok=True)
        with torch.no_grad():
            MAKERS[sys.argv[2]](made, seed)
        sys.exit()
    code = tiny.main()
    if sys.argv[1] == "make" and not code:
        write_greedy(sys.argv[2], Path(sys.argv[3]), seed)
    sys.exit(code)
