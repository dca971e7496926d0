"""The shared parts of vision towers: resizing and patches on the host, layers on the device."""
