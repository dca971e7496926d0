"""Keys and values of past tokens, in pages."""
