"""The sources of modules to export, and the inputs with which they are called."""
