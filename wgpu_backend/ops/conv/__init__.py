"""Convolutions and resampling."""
