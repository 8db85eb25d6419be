"""Masking of pivots: words that tell the labels of a source domain and are frequent in the target domain as well."""
