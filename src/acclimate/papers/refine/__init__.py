"""Documents that programs clean line by line (ProX, Zhou et al., 2024)."""
