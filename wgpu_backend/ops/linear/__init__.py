"""Products with weights: one op, what surrounds a product as data, and its rules."""
