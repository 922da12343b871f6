"""Which norm a PyTorch module computes, found by asking it; and its replacement."""
