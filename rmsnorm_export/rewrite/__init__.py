"""Load, recognise, lower, replace, clean, save."""
