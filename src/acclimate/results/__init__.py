"""Results of studies and measurements: rows, tables and their display."""
