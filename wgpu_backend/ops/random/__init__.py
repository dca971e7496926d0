"""Random numbers of keys: the same for the same key on every device."""
