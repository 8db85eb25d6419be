"""A memory of a domain that is interpolated with any model of the same tokens (Memory Decoder, Cao et al., 2025)."""
