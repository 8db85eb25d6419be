"""Parts that several papers share: masking, objectives, update rules, modules."""
