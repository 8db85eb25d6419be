"""Reading-comprehension text: documents followed by questions that they answer."""
