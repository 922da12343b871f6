"""The speed of a model before and after, and whether the difference is more than noise."""
