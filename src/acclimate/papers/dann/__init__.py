"""Domain-adversarial training with a labelled source and unlabelled target text (Ganin et al., JMLR 2016)."""
