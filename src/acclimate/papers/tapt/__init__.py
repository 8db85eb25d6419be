"""Task-adaptive pre-training, alone or after domain-adaptive pre-training (Gururangan et al., ACL 2020)."""
