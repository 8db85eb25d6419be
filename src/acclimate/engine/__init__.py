"""Steps of training, whatever the method: batches, trainer, checkpoints, processes, sharding, memory."""
