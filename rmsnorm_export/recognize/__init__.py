"""Graph to facts to matches and refusals; never changes the graph."""
