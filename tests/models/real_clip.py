"""CLIP ViT-B/16's real picture half against transformers and onnxruntime.

    PYTHON -m tests.models.real_clip judge CLIP.onnx FOLDER PICTURE...
    python -m tests.models.real_clip compare FOLDER [--device DEVICE]

`judge` makes a Hugging Face folder of the file that ``../shared/tools/real_weights.py get
clip-vit-b16`` unpacks: its int8 matrices times their scales. It records the vectors of
transformers, of onnxruntime with the same f32 matrices, and of onnxruntime with the file as it is,
whose activations have eight bits. It needs a Python with transformers, onnx and onnxruntime.
`compare` prints NMSE for each picture.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

CONFIG = {
    "architectures": ["CLIPModel"], "model_type": "clip", "projection_dim": 512,
    "text_config": {"hidden_size": 512},
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224, "patch_size": 16,
        "projection_dim": 512, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
    },
}  # fmt: skip


def widen(model):
    """Replace products of integers by products of f32; return weights by transformers' names."""
    from onnx import helper, numpy_helper

    graph = model.graph
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    weights = {name: x for name, x in constants.items() if name.startswith("vision_model")}
    users, makers = defaultdict(list), {out: node for node in graph.node for out in node.output}
    for node in graph.node:
        for name in node.input:
            users[name].append(node)
    for node in [each for each in graph.node if each.op_type == "MatMulInteger"]:
        x, matrix, _, zero = node.input
        base = matrix.removesuffix("_quantized")
        wide = constants[matrix].astype(np.float32) - np.float32(constants[zero])
        wide *= constants[f"{base}_scale"]
        # A product is followed by a cast and by the scales of both sides.
        [cast] = users[node.output[0]]
        [scaled] = users[cast.output[0]]
        graph.initializer.append(numpy_helper.from_array(wide, f"{base}_f32"))
        inputs = [makers[x].input[0], f"{base}_f32"]
        made = helper.make_node("MatMul", inputs, [*scaled.output])
        at = next(i for i, each in enumerate(graph.node) if each.output == scaled.output)
        graph.node.remove(graph.node[at])
        graph.node.insert(at, made)
        name = node.name.strip("/").rpartition("/")[0].replace("/", ".")
        weights[f"{name}.weight"] = np.ascontiguousarray(wide.T)
    return weights


def judge(path, folder, files):
    import onnx
    import onnxruntime
    import torch
    import transformers
    from PIL import Image
    from safetensors.numpy import save_file

    model = onnx.load(path)
    weights = widen(model)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    processor = transformers.CLIPImageProcessorPil()
    processor.save_pretrained(folder)
    settings = transformers.CLIPVisionConfig(**CONFIG["vision_config"])
    known = transformers.CLIPVisionModelWithProjection._from_config(
        settings, attn_implementation="eager"
    )
    known.load_state_dict({name: torch.tensor(x) for name, x in weights.items()})
    sessions = {
        "onnxruntime": onnxruntime.InferenceSession(model.SerializeToString()),
        "onnxruntime, int8": onnxruntime.InferenceSession(path),
    }
    made = {}
    for i, file in enumerate(files):
        picture = Image.open(file).convert("RGB")
        made[f"{i} picture"] = np.asarray(picture)
        values = processor(images=[picture], return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            made[f"{i} transformers"] = known.eval()(values).image_embeds[0].numpy()
        for name, session in sessions.items():
            made[f"{i} {name}"] = session.run(None, {"pixel_values": values.numpy()})[0][0]
    np.savez(folder / "reference.npz", **made)


def compare(folder, device):
    from tests.models.towers import rows
    from wgpu_backend.files.huggingface.tower import open_tower_folder
    from wgpu_backend.ml.backend import Backend, BackendParams, make_executor
    from wgpu_backend.nn.tower import tower_class
    from wgpu_backend.testing import nmse

    recorded = np.load(folder / "reference.npz")
    with Backend(open_tower_folder(folder), make_executor(device, BackendParams())) as backend:
        backend.load()
        tower = tower_class(backend.config, "image", "clip-vector")(backend)
        for name in [each for each in recorded if each.endswith("picture")]:
            [found] = rows(tower, tower.prepare(recorded[name]))
            number = name.partition(" ")[0]
            others = [each for each in recorded if each.startswith(f"{number} ") and each != name]
            figures = (
                f"{other.partition(' ')[2]} {nmse(found, recorded[other]):.1e}" for other in others
            )
            sys.stdout.write(f"{number}: {'; '.join(figures)}\n")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.models.real_clip", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    judged = parts.add_parser("judge")
    judged.add_argument("onnx", type=Path)
    judged.add_argument("folder", type=Path)
    judged.add_argument("pictures", nargs="+", type=Path)
    compared = parts.add_parser("compare")
    compared.add_argument("folder", type=Path)
    compared.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.part == "judge":
        judge(options.onnx, options.folder, options.pictures)
    else:
        compare(options.folder, options.device)


if __name__ == "__main__":
    sys.exit(main())
