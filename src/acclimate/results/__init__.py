"""What studies and measurements return: rows, tables and their display."""
