"""Weights of products in few bits, and what that costs, for any model."""
