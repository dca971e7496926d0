"""Models as Hugging Face folders have them: config.json, a tokenizer, and safetensors."""
