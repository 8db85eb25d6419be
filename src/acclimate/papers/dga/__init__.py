"""DGA: adapting a language model while preserving its general knowledge (Ke et al., EMNLP 2022)."""
