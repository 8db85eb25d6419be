"""Adapt a language model to unlabelled domain text, keep what it already knows, and measure whether it helped."""

from acclimate.adaptation.adapt import adapt as adapt
from acclimate.adaptation.corpus_verbs import select as select
from acclimate.adaptation.corpus_verbs import transform as transform
from acclimate.adaptation.pretrain import pretrain as pretrain
from acclimate.cards.hub import push as push
from acclimate.evaluation.benchmarks import inspect_benchmarks as inspect_benchmarks
from acclimate.evaluation.instructions import inspect_instructions as inspect_instructions
from acclimate.labs.advise.advice import advise as advise
from acclimate.labs.advise.methods import methods as methods
from acclimate.labs.auto.auto import auto as auto
from acclimate.labs.bench.bench import bench as bench
from acclimate.labs.bench.doctor import doctor as doctor
from acclimate.labs.demo.comparison import demo as demo
from acclimate.labs.inspection.embeddings import inspect_embeddings as inspect_embeddings
from acclimate.labs.inspection.experts import inspect_experts as inspect_experts
from acclimate.labs.inspection.importance import inspect_importance as inspect_importance
from acclimate.labs.inspection.leakage import inspect_leakage as inspect_leakage
from acclimate.labs.inspection.masks import inspect_masks as inspect_masks
from acclimate.labs.inspection.model import inspect_model as inspect_model
from acclimate.labs.inspection.review import inspect_review as inspect_review
from acclimate.labs.inspection.sensitivity import inspect_sensitivity as inspect_sensitivity
from acclimate.labs.inspection.specificity import inspect_specificity as inspect_specificity
from acclimate.labs.inspection.task_words import inspect_task_words as inspect_task_words
from acclimate.labs.periods.gap import periods_gap as periods_gap
from acclimate.labs.periods.questions import periods_questions as periods_questions
from acclimate.labs.periods.self_training import periods_self_train as periods_self_train
from acclimate.labs.periods.split import periods_split as periods_split
from acclimate.labs.periods.surprisal import periods_surprisal as periods_surprisal
from acclimate.labs.plan.pilots import plan_budget as plan_budget
from acclimate.labs.plan.pilots import plan_ratio as plan_ratio
from acclimate.labs.plan.pilots import plan_schedule as plan_schedule
from acclimate.labs.sequence.run import sequence as sequence
from acclimate.merging.merge import merge as merge
from acclimate.papers.selective.cost_table import inspect_cost as inspect_cost
from acclimate.study.compare import compare as compare
from acclimate.study.described import init as init
from acclimate.tasks.distillation.distill import distill as distill
from acclimate.tasks.finetune import finetune as finetune
from acclimate.tasks.kinds.retrieval.generation import generate_queries as generate_queries
from acclimate.tasks.prediction import predict as predict
from acclimate.tasks.probing import probe as probe

__version__: str
