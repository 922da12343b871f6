"""Hostile and odd model files; see ``hostile_models``."""
