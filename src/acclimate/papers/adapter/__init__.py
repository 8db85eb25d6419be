"""Language modelling with bottleneck adapters and a frozen model (Houlsby et al., ICML 2019)."""
