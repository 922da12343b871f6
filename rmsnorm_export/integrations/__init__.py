"""A step of other people's tools; each module is for one of them, and imports it."""
