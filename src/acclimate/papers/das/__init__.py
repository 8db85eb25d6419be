"""DAS: adapting to one domain after the other without forgetting the earlier ones (Ke et al., ICLR 2023)."""
