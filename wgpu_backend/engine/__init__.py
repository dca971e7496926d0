"""From a model to text: batches, recorded steps, generation."""
