"""Language models: loading, recorded steps, generation, and batched serving."""
