"""The fuzzer of tests/tools/fuzz: that it catches what is wrong, and mutants in which nothing is."""
