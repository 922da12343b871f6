"""Results as frozen dataclasses, and their text and JSON forms."""
