"""What transformers makes of a video with the tiny Qwen models, for `tests/towers.py`.

Needs what ``../shared/tools/tiny_towers.py`` needs; writes video.npz into each folder::

    python tests/data/make_tower_videos.py FOLDER...
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3] / "shared" / "tools"))
sys.path.insert(0, str(Path(__file__).parents[2]))
import tiny_towers

from tests.data.tower_weights import frames

COUNT, FPS, FRAMES, SIZE = 16, 3.0, 5, (140, 196)
WHOLE = "<|vision_start|><|video_pad|><|vision_end|>"


def main(folders):
    torch, tf = tiny_towers.libs()
    shown = frames(FRAMES, *SIZE)
    metadata = {"fps": FPS, "total_num_frames": FRAMES, "frames_indices": [*range(FRAMES)]}
    with torch.no_grad():
        for folder in map(Path, folders):
            config = json.loads((folder / "hf" / "config.json").read_text())
            [name] = config["architectures"]
            made = getattr(tf, name)
            model = made.from_pretrained(folder / "hf", attn_implementation="eager").float().eval()
            processor = tf.AutoProcessor.from_pretrained(folder / "hf")
            is_third = name.startswith("Qwen3")
            if is_third:
                limits = {"shortest_edge": 4096, "longest_edge": 25165824}
                processor.video_processor = tf.Qwen3VLVideoProcessor(size=limits)
            # Transformers 5 puts a third model's frames between the template's own vision tokens;
            # the published code replaces these.
            text = "Two plus <|video_pad|> is" if is_third else f"Two plus {WHOLE} is"
            inputs = processor(
                text=[text], videos=[list(shown)], return_tensors="pt",
                videos_kwargs={"do_sample_frames": False, "video_metadata": [metadata]},
            )  # fmt: skip
            ids, kinds = inputs["input_ids"], inputs["mm_token_type_ids"]
            tokens, logits = [], None
            for _ in range(COUNT):
                found = model(**inputs, use_cache=False).logits[0]
                logits = found if logits is None else logits
                tokens.append(int(found[-1].argmax()))
                for key, value in (("input_ids", tokens[-1]), ("mm_token_type_ids", 0),
                                   ("attention_mask", 1)):  # fmt: skip
                    inputs[key] = torch.cat([inputs[key], torch.tensor([[value]])], 1)
            rows = model.model.get_video_features(
                inputs["pixel_values_videos"], inputs["video_grid_thw"]
            )
            parts = [torch.cat([*rows.pooler_output])]
            parts += [torch.cat([*x]) for x in getattr(rows, "deepstack_features", None) or []]
            np.savez_compressed(
                folder / "video.npz", text=text, input_ids=ids[0], media=kinds[0] != 0,
                embeds=torch.cat(parts, 1), logits=logits, tokens=tokens,
            )  # fmt: skip
            file = folder / "hf" / "processor_config.json"
            joint = json.loads(file.read_text())
            joint["video_processor"] = json.loads(processor.video_processor.to_json_string())
            file.write_text(json.dumps(joint))


if __name__ == "__main__":
    main(sys.argv[1:])
