"""EWC over several domains: weights that mattered in any of them are held (Kirkpatrick et al., PNAS 2017)."""
