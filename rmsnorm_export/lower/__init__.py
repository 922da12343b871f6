"""From a match to the nodes of a target, or a refusal."""
