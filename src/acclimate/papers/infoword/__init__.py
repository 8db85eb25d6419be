"""MLM+InfoWord: contrast between a text and its own masked-out n-gram (baseline of Ke et al., EMNLP 2022)."""
