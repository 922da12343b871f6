"""Two models on any two backends: the same inputs, every output compared, the place found."""
