"""MLM with prompts that a hypernetwork makes from each text (after Jiang et al., Findings of EMNLP 2023)."""
