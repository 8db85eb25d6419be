"""DER++: texts of earlier domains are replayed with the logits that they had (Buzzega et al., NeurIPS 2020)."""
