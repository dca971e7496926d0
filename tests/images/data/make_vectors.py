"""What tests of tokenizers and schedulers compare with, out of tiny pipelines.

    python -m tests.images.tiny PYTHON
    python -m tests.images.data.make_vectors build/tiny

Writes tokenizers.zip (files of tokenizers as published folders have them, and the ids that
transformers makes of a dozen texts) and schedulers.npz (what diffusers' schedulers were given and
made at each step, over a sixteenth of the values, and their configurations), and pictures.npz (the
test picture, a mask, and what encoders are given of them).
"""

import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
TOKENIZERS = {
    "clip": "sd15/tokenizer", "clip-2": "sdxl/tokenizer_2", "t5": "flux1-dev/tokenizer_2",
    "qwen": "flux2-klein/tokenizer",
}  # fmt: skip
SCHEDULERS = (
    "sd15", "sd15-pndm", "sd15-euler", "sd15-euler-a", "sd15-dpmpp2m", "sd15-dpmpp2m-karras",
    "sd15-img2img", "sdxl", "sd3", "flux1-dev", "flux1-schnell", "flux2-klein", "z-image-turbo",
    "qwen-image",
)  # fmt: skip
STRIDE = 16
KINDS = ("sample", "timestep", "model_output", "prev_sample", "noise")


def tokenizers(tiny: Path) -> None:
    with zipfile.ZipFile(
        HERE / "tokenizers.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9
    ) as out:
        for name, place in TOKENIZERS.items():
            for file in sorted((tiny / place).iterdir()):
                put(out, f"{name}/{file.name}", file.read_bytes())
            reference = json.loads(
                (tiny / place).parent.joinpath("reference/tokenizers.json").read_text()
            )
            known = {
                "ids": reference[Path(place).name],
                "chat": reference.get("tokenizer.chat", {}),
            }
            put(out, f"{name}/known.json", json.dumps(known).encode())


def put(out: zipfile.ZipFile, name: str, data: bytes) -> None:
    """A file whose date is no matter, so that the same files make the same archive."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    out.writestr(info, data)


def schedulers(tiny: Path) -> None:
    arrays: dict[str, np.ndarray] = {}
    for name in SCHEDULERS:
        folder = tiny / name
        stored = np.load(folder / "reference/reference.npz")
        for key in stored:
            *_, part, kind = ["", *key.split(".")]
            if part != "scheduler" or (kind == "alphas_cumprod" and name != "sd15"):
                continue
            value = stored[key]
            thin = kind in KINDS and value.size > STRIDE
            arrays[f"{name}/{key}"] = value.reshape(-1)[::STRIDE] if thin else value
        config = (folder / "scheduler/scheduler_config.json").read_bytes()
        arrays[f"{name}/config"] = np.frombuffer(config, np.uint8)
        reference = json.loads((folder / "reference/reference.json").read_text())
        arguments = {
            "size": reference["size"],
            "steps": reference["steps"],
            **reference["arguments"],
        }
        arrays[f"{name}/arguments"] = np.frombuffer(json.dumps(arguments).encode(), np.uint8)
    made = io.BytesIO()
    np.savez_compressed(made, **arrays)
    (HERE / "schedulers.npz").write_bytes(made.getvalue())


def pictures(tiny: Path) -> None:
    paint = np.load(tiny / "sd15-inpaint/reference/reference.npz")
    edit = np.load(tiny / "qwen-image-edit/reference/reference.npz")
    config = json.loads((tiny / "qwen-image-edit/processor/processor_config.json").read_text())
    processor = json.dumps(config["image_processor"]).encode()
    made = io.BytesIO()
    np.savez_compressed(
        made,
        picture=paint["picture"],
        mask=paint["mask"],
        encoder_input=paint["vae.test_picture.input"],
        masked_input=paint["vae.encode.call0.input"],
        mask_of_latents=paint["step0.unet.call0.sample"][:1, 4:5],
        patches=edit["text_encoder.call0.pixel_values"],
        grid=edit["text_encoder.call0.image_grid_thw"],
        processor=np.frombuffer(processor, np.uint8),
    )
    (HERE / "pictures.npz").write_bytes(made.getvalue())


if __name__ == "__main__":
    tokenizers(Path(sys.argv[1]))
    schedulers(Path(sys.argv[1]))
    pictures(Path(sys.argv[1]))
