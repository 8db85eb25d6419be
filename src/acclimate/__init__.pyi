"""Adapt a language model to unlabelled domain text, keep what it already knows, and measure whether it helped."""

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.corpus_verbs import select, transform
from acclimate.adaptation.pretrain import pretrain
from acclimate.cards.hub import push
from acclimate.labs.advise.advice import advise
from acclimate.labs.advise.methods import methods
from acclimate.labs.auto.auto import auto
from acclimate.labs.bench.bench import bench
from acclimate.labs.bench.doctor import doctor
from acclimate.labs.benchmarks.harness import inspect_benchmarks
from acclimate.labs.benchmarks.instructions import inspect_instructions
from acclimate.labs.demo.comparison import demo
from acclimate.labs.inspection.embeddings import inspect_embeddings
from acclimate.labs.inspection.experts import inspect_experts
from acclimate.labs.inspection.importance import inspect_importance
from acclimate.labs.inspection.leakage import inspect_leakage
from acclimate.labs.inspection.masks import inspect_masks
from acclimate.labs.inspection.model import inspect_model
from acclimate.labs.inspection.review import inspect_review
from acclimate.labs.inspection.sensitivity import inspect_sensitivity
from acclimate.labs.inspection.specificity import inspect_specificity
from acclimate.labs.inspection.task_words import inspect_task_words
from acclimate.labs.judge.judging import judge
from acclimate.labs.periods.gap import periods_gap
from acclimate.labs.periods.questions import periods_questions
from acclimate.labs.periods.self_training import periods_self_train
from acclimate.labs.periods.split import periods_split
from acclimate.labs.periods.surprisal import periods_surprisal
from acclimate.labs.plan.pilots import plan_budget, plan_mixture, plan_ratio, plan_schedule
from acclimate.labs.sequence.run import sequence
from acclimate.labs.skill.options import skill
from acclimate.merging.merge import merge
from acclimate.papers.selective.annotation import annotate_task as annotate
from acclimate.papers.selective.cost_table import inspect_cost
from acclimate.study.compare import compare
from acclimate.study.described import init
from acclimate.tasks.distillation.distill import distill
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.retrieval.generation import generate_queries
from acclimate.tasks.prediction import predict
from acclimate.tasks.probing import probe

__version__: str

__all__ = [
    "__version__",
    "adapt",
    "advise",
    "annotate",
    "auto",
    "bench",
    "compare",
    "demo",
    "distill",
    "doctor",
    "finetune",
    "generate_queries",
    "init",
    "inspect_benchmarks",
    "inspect_cost",
    "inspect_embeddings",
    "inspect_experts",
    "inspect_importance",
    "inspect_instructions",
    "inspect_leakage",
    "inspect_masks",
    "inspect_model",
    "inspect_review",
    "inspect_sensitivity",
    "inspect_specificity",
    "inspect_task_words",
    "judge",
    "merge",
    "methods",
    "periods_gap",
    "periods_questions",
    "periods_self_train",
    "periods_split",
    "periods_surprisal",
    "plan_budget",
    "plan_mixture",
    "plan_ratio",
    "plan_schedule",
    "predict",
    "pretrain",
    "probe",
    "push",
    "select",
    "sequence",
    "skill",
    "transform",
]
