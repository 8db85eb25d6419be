"""Classification, with one label per item or any number: the data and the model."""
