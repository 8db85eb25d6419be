"""Methods that need no paper: language modelling, and none."""
