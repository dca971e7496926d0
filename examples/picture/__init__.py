"""What the examples with a window share: the window, and colours."""
