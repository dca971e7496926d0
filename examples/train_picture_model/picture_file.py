"""Store the picture model as a pipeline's folder, with weights in f16."""

import json
from dataclasses import asdict
from pathlib import Path

from picture_model import PictureConfig, PictureModel
from picture_words import VOCABULARY
from safetensors.torch import load_file, save_file

SHIFT = 3.0  # of the scheduler: how many of the steps are spent on much noise
TENSORS = "diffusion_pytorch_model.safetensors"
INDEX = {
    "_class_name": "PicturePipeline",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "transformer": ["wgpu_backend", "PictureTransformer"],
}
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": SHIFT,
}


def save(folder: Path, model: PictureModel) -> None:
    """Write `model`; all tensors at once or none."""
    for name in ("scheduler", "transformer"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    config = {"_class_name": "PictureTransformer", **asdict(model.config)}
    _write(folder / "model_index.json", INDEX)
    _write(folder / "scheduler" / "scheduler_config.json", SCHEDULER)
    _write(folder / "transformer" / "config.json", config | {"vocabulary": VOCABULARY})
    tensors = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    unfinished = folder / "transformer" / "unfinished"
    save_file(tensors, unfinished, {"format": "pt"})
    unfinished.replace(folder / "transformer" / TENSORS)


def load(folder: Path) -> PictureModel:
    """Read a model that `save` wrote."""
    config = json.loads((folder / "transformer" / "config.json").read_text())
    known = PictureConfig.__dataclass_fields__
    model = PictureModel(PictureConfig(**{k: v for k, v in config.items() if k in known}))
    tensors = load_file(folder / "transformer" / TENSORS)
    model.load_state_dict({name: value.float() for name, value in tensors.items()})
    return model.eval()


def _write(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")
