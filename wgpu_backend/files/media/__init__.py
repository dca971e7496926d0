"""Pictures and sounds in files, read into arrays."""
