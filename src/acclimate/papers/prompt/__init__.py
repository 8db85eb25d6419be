"""MLM with a soft prompt: learned vectors after each text, with a frozen model (Lester et al., EMNLP 2021)."""
