"""A model in half precision: what has to stay float32, by measured ranges, and the conversion."""
