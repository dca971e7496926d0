"""A simulator of many nodes that serve one model, and its calibration with real workers."""
