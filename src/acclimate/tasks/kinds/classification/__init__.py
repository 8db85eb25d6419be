"""Classification of texts and pairs of texts."""
