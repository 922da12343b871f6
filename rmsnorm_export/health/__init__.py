"""The limits of norms and residual sums in half precision, and the ranges in a run."""
