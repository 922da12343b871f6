"""The fuzzer of tests/tools/fuzz: that it catches what is wrong, and a sample of what it does."""
