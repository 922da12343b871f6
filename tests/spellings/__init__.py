"""Models that contain RMSNorm in every spelling, and models that only look like it.

Written from the operator's definition, independently of the recogniser that it judges. Every model
carries its ground truth: how many norms it holds and what it computes, in float64.
"""
