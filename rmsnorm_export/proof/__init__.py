"""Proofs per site and comparison of whole models."""
