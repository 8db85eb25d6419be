"""Distilling a teacher's knowledge of a task into a student of another architecture (DoKTra, Choi et al., 2022)."""
