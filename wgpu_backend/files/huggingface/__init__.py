"""Hugging Face checkpoints: config.json, a tokenizer, and safetensors."""
