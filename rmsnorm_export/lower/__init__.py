"""One module per target: a match becomes nodes, or a refusal."""
