"""Documents that move what the model was trained on toward the task (GOT-D, Kang et al., ICLR 2024)."""
