"""Arrays quantised in the layout of MLX: codes packed in u32 along the last axis."""
