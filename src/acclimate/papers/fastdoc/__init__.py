"""Pre-training on the metadata of documents, read as sentence vectors (FPDM / FastDoc, Nandy et al., 2023)."""
