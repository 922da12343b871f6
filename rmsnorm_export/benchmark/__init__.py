"""How fast a model is before and after, and whether the difference is more than noise."""
