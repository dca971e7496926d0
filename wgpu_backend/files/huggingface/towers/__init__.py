"""Towers in checkpoints, one file for each kind; see `wgpu_backend.files.huggingface.tower`."""
