"""A folder per paper: the parts that only this paper needs."""
