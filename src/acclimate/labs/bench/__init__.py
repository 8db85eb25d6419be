"""Speed of training on this machine, and what this installation can do."""
