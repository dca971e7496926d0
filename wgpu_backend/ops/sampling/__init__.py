"""From logits to tokens on the device: sorting, top-k, random choice, slots of chosen tokens."""
