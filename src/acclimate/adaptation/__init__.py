"""The engine, the trainer around it, and adaptation from files to a model folder."""
