"""The kinds of jobs of a study, one module each.

To add a kind, add a module with a subclass of :class:`acclimate.study.job.Job`, decorated with
``@register(name)``. Its fields are the identity of a job, and ``run`` does the work. Class methods plan the jobs of a
study and return the rows that they add to the results; ``section`` names the section of the study file that configures
the kind, and ``setting`` a setting that turns it on: a study asks no kind that it does not use. No other registration
is needed: all modules of this package, and the entry points of the group ``acclimate.study.jobs``, are imported when
the kinds are first needed.
"""
