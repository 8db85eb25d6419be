"""Text and tasks over time: splits by period, how fast models age, and how models of periods differ."""
