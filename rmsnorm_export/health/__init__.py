"""What norms, sums and products survive in half precision, and the ranges in a run."""
