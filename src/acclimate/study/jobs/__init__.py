"""The kinds of jobs of a study, one module each.

To add a kind, add a module with a subclass of :class:`acclimate.study.jobs.base.Job` under ``@register(name)``: its
fields are its identity, ``run`` does the work, and class methods say which jobs a study has of it, which rows they add
to the results, and which section of the study file configures it. Nothing else lists the kinds: all modules of this
package are imported when the kinds are first needed, and so are entry points of the group ``acclimate.study.jobs``.
"""
