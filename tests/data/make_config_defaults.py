"""Defaults of transformers' configuration classes, for tests/files/huggingface/test_settings.py.

Needs torch and transformers 5: ``python tests/data/make_config_defaults.py``. Checkpoints leave
out settings that equal these. Rotary settings are written with the others; a dictionary by kind of
layer counts as that of layers without a window.
"""

import json
import logging
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def names_of(class_name: str) -> set[str]:
    """Return the settings for which a family has a default, or supports one value only."""
    from wgpu_backend.files.huggingface.family import families

    made = families()[class_name]
    own = made.by_class.get(class_name, {})
    return {*made.defaults, *own, *made.default_rope, *made.needed, *made.activation_settings}


def defaults_of(class_name: str) -> dict[str, Any] | None:
    """Return the defaults of the text model; None if transformers has no such class."""
    import transformers

    made = getattr(transformers, class_name, None)
    if made is None:
        return None
    config = made.config_class().get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    found = {**config.to_dict(), **rope}
    return {name: found.get(name) for name in sorted(names_of(class_name))}


def main() -> None:
    """Write the defaults of each class that is known here."""
    from wgpu_backend.files.huggingface.family import families

    logging.disable()
    found = {name: defaults_of(name) for name in families()}
    kept = {name: values for name, values in found.items() if values is not None}
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in kept.items()]
    (HERE / "config_defaults.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
