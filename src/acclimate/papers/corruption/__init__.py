"""Language modelling plus the detection of corrupted documents or dialogues (after Deng et al., WWW 2022)."""
