"""The kinds of end tasks; every module here is imported and registers its kind."""
