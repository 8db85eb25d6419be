"""Speed and memory of training, compared with what people use today."""
