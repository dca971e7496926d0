"""Spectrograms of sound, and the layers of audio encoders."""
