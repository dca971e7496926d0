"""Sound for models: spectrograms."""
