"""Norms that recognition did not follow, found by what they compute."""
