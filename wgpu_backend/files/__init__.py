"""Model files on disk: GGUF, Hugging Face checkpoints, quantization, and the store."""
