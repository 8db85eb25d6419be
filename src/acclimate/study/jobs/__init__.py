"""The kinds of jobs of a study, one module each; every module here is imported when the kinds are first needed."""
