"""The machine: child processes, files and folders that appear whole, digests and GPUs."""
