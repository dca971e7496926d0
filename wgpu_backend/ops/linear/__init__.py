"""Matrix products with weights: one op, its prologue and epilogue as data, and its fusion rules."""
