"""The fuzzer of scripts/fuzzing: that it catches what is wrong, and a sample of what it does."""
