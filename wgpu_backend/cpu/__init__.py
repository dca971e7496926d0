"""Every op in NumPy: the reference that tests compare with, and the device of last resort."""
