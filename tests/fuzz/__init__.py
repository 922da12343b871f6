"""Norms of which steps are drawn, and the judge of what is made of them."""
