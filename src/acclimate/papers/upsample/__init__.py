"""Upsampling of some sources at the end of the training."""
