"""Pre-finetuning on many labelled tasks at once (Muppet, Aghajanyan et al., EMNLP 2021)."""
