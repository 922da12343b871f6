"""Decoders with their caches: transformers' exporter, and every norm of its graphs as one node."""
