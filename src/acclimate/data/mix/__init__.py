"""Mixes: how much of which source a training reads when; every module here is imported and registers its mixes."""
