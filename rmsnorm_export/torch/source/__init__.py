"""Where a module to export comes from, and the inputs it is called with."""
