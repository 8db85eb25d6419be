"""The causal detour of continued pre-training (Touchent and de la Clergerie, 2026)."""
