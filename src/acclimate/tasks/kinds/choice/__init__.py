"""Multiple choice: which of the choices of a question is correct."""
