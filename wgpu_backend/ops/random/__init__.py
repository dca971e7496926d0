"""Random numbers of keys, which are values on a device: the same for the same key everywhere."""
