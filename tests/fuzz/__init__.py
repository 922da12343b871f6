"""The fuzzer of tests/tools/fuzz: it catches what is wrong; mutants in which nothing is."""
