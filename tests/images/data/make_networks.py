"""Results of diffusers' and transformers' networks, for tests/images/test_networks.py.

Needs torch, transformers 5.23 and diffusers 0.42, and the pipelines that `tests/images/tiny.py`
makes: ``python -m tests.images.data.make_networks``. Of a network networks.zip has the config.json,
shapes of tensors, and some values of each result. Weights and inputs are drawn by `drawn`, so that
tests need neither package.
"""

import inspect
import json
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_name("networks.zip")
FOLDER = Path(__file__).parents[3] / "build/tiny"
SHOWN = 64
IMAGE, LATENTS, SMALL = (1, 3, 32, 32), (1, 4, 4, 4), (1, 8, 4, 4)
TIMES = [700.0, 20.0]
SIZES = [[64.0, 48.0, 0.0, 8.0, 64.0, 64.0], [32.0, 32.0, 4.0, 0.0, 64.0, 64.0]]
VAE = {"encode": IMAGE}
GRID = (4, 4)
PLACES = [[float(row), float(column)] for row in range(GRID[0]) for column in range(GRID[1])]
# Names of results, or of arguments of the one call, with the shapes of what is drawn or the values.
INPUTS: dict[str, dict[str, Any]] = {
    "sd15/unet": {
        "sample": (2, 4, 8, 8), "timestep": TIMES, "encoder_hidden_states": (2, 7, 32),
    },
    "sdxl/unet": {
        "sample": (2, 4, 8, 8), "timestep": TIMES, "encoder_hidden_states": (2, 7, 80),
        "added_cond_kwargs.text_embeds": (2, 48), "added_cond_kwargs.time_ids": SIZES,
    },
    "sd3/transformer": {
        "hidden_states": (2, 8, 8, 8), "timestep": TIMES, "encoder_hidden_states": (2, 9, 96),
        "pooled_projections": (2, 80),
    },
    "sd35/transformer": {
        "hidden_states": (2, 8, 8, 8), "timestep": TIMES, "encoder_hidden_states": (2, 9, 96),
        "pooled_projections": (2, 80),
    },
    "flux1-dev/transformer": {
        "hidden_states": (1, 16, 32), "timestep": [0.7], "encoder_hidden_states": (1, 6, 48),
        "pooled_projections": (1, 32), "guidance": [3.5],
        "txt_ids": [[0.0] * 3] * 6, "img_ids": [[0.0, *place] for place in PLACES],
    },
    "flux2-klein/transformer": {
        "hidden_states": (1, 16, 32), "timestep": [0.7], "encoder_hidden_states": (1, 6, 96),
        "txt_ids": [[[0.0, 0.0, 0.0, float(i)] for i in range(6)]],
        "img_ids": [[[0.0, *place, 0.0] for place in PLACES]],
    },
    "qwen-image/transformer": {
        "hidden_states": (1, 16, 16), "timestep": [0.7], "encoder_hidden_states": (1, 6, 64),
    },
    "z-image/transformer": {"x": (8, 1, 8, 8), "t": [0.3], "cap_feats": (11, 32)},
    "flux2-klein/vae": {**VAE, "decode": SMALL},
    "qwen-image/vae": {"encode": (1, 3, 1, 32, 32), "decode": (1, 4, 1, 4, 4)},
    "flux2-klein/text_encoder": {"ids": (1, 24)},
    "sd15/vae": {**VAE, "decode": LATENTS},
    "sd3/vae": {**VAE, "decode": SMALL},
    "sd15/taesd": {**VAE, "decode": LATENTS},
    "sd15/text_encoder": {"ids": (1, 24)},
    "sdxl/text_encoder_2": {"ids": (1, 24)},
    "sd3/text_encoder_3": {"ids": (1, 32)},
}  # fmt: skip


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the values of a parameter or an input: those of a name are always the same."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, np.int64)
    if name.endswith("ids"):
        return rng.integers(3, 90, shape)
    if name.endswith("running_var") or (len(shape) < 2 and name.endswith("weight")):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    fan = float(np.prod(shape[1:])) if name.endswith("weight") else 1.0
    return (rng.standard_normal(shape) * 1.2 / fan**0.5).astype(np.float32)


def given(inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return arrays of inputs: shapes are drawn, lists are values."""
    return {
        name: drawn(name, tuple(of)) if type(of[0]) is int else np.array(of, np.float32)
        for name, of in inputs.items()
    }


def shown(values: np.ndarray) -> np.ndarray:
    """Return some values of a result, from all parts of it."""
    flat = np.asarray(values).reshape(-1)
    places = np.random.default_rng(len(flat)).integers(0, len(flat), SHOWN)
    return flat[places]


def class_of(config: dict[str, Any]) -> Any:
    """Return the class of a network."""
    import diffusers
    import transformers

    name = config.get("_class_name") or config["architectures"][0]
    return getattr(diffusers, name, None) or getattr(transformers, name)


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out what equals the default of the class, as files of old versions do."""
    made = class_of(config)
    if "architectures" in config:
        usual = made.config_class().to_dict()
    else:
        usual = {k: p.default for k, p in inspect.signature(made.__init__).parameters.items()}
    lists = {k: [*v] if isinstance(v, tuple) else v for k, v in usual.items()}
    # The kinds of blocks are always written.
    return {
        k: v
        for k, v in config.items()
        if k.endswith("_types") or (k != "_diffusers_version" and lists.get(k, inspect) != v)
    }


def make_network(folder: Path) -> tuple[Any, dict[str, list[int]]]:
    """Return a network of a folder with drawn weights, and the published shapes of these."""
    from safetensors.numpy import load_file, save_file

    made = class_of(json.loads((folder / "config.json").read_text()))
    with tempfile.TemporaryDirectory() as copied:
        shutil.copytree(folder, copied, dirs_exist_ok=True)
        [path] = Path(copied).glob("*.safetensors")
        tensors = {key: drawn(key, x.shape) for key, x in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})
        network = made.from_pretrained(copied).eval()
    return network, {key: list(x.shape) for key, x in tensors.items()}


def results(network: Any, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the results of a network, channels first."""
    import torch

    tensors = {name: torch.from_numpy(x) for name, x in given(inputs).items()}
    if "decode" in tensors:
        encoded = network.encode(tensors["encode"])
        found = {"decode": network.decode(tensors["decode"]).sample}
        if hasattr(encoded, "latents"):
            return {**found, "latents": encoded.latents}
        moments = encoded.latent_dist
        return {**found, "mean": moments.mean, "logvar": moments.logvar}
    if "ids" in tensors:
        made = network(tensors["ids"], output_hidden_states=True)
        found = {f"states.{i}": x for i, x in enumerate(made.hidden_states)}
        others = {
            "last": "last_hidden_state",
            "pooled": "pooler_output",
            "projected": "text_embeds",
        }
        return found | {key: made[name] for key, name in others.items() if name in made}
    nested = {k.rpartition(".")[2]: tensors.pop(k) for k in list(tensors) if "." in k}
    if nested:
        tensors["added_cond_kwargs"] = nested
    if "x" in tensors:  # Z-Image takes lists
        tensors = {k: x if k == "t" else [x] for k, x in tensors.items()}
        return {"output": network(**tensors).sample[0]}
    if "Qwen" in type(network).__name__:
        tensors["img_shapes"] = [[(1, *GRID)]]
    return {"output": network(**tensors).sample}


def recorded(name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a network."""
    import torch

    folder = FOLDER / name
    network, shapes = make_network(folder)
    with torch.no_grad():
        found = results(network, inputs)
    return {
        "config": shortened(json.loads((folder / "config.json").read_text())),
        "shapes": shapes,
        "results": {
            key: [float(f"{x:.8g}") for x in shown(value.double().numpy())]
            for key, value in found.items()
        },
    }


def main() -> None:
    """Write the file."""
    with zipfile.ZipFile(PATH, "w", zipfile.ZIP_DEFLATED) as kept:
        for name, inputs in INPUTS.items():
            entry = zipfile.ZipInfo(f"{name}.json")
            kept.writestr(entry, json.dumps(recorded(name, inputs)), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
