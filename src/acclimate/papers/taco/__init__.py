"""Language modelling plus a contrast between the contexts of neighbouring tokens (TACO, Fu et al., ACL 2022)."""
