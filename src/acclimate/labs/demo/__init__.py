"""The bundled demo."""
