"""Model families in Hugging Face checkpoints: tables of names, one file for related models."""
