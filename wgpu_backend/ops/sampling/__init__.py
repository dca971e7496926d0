"""From logits to tokens: sorting, top-k, draws, and chosen tokens on the device."""
