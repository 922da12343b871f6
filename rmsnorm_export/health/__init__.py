"""What norms and residual sums survive in half precision, and what a run shows of them."""
