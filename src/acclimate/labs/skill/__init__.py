"""Instructions for coding agents."""
