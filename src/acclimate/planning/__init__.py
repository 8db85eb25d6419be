"""Planning an adaptation: advice from measurements, and the cost of task-guided pre-training."""
