"""Text on pairs and triples of the entities of a document (EntiGraph, Yang et al., ICLR 2025)."""
