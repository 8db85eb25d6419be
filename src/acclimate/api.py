"""What papers and packages of third parties import; see ``docs/write-your-own-method.md``.

Each name is documented where it is defined. Whatever is not here may change without notice.
"""
# The groups are subjects, so the imports are neither sorted nor one per line.
# isort: off
# fmt: off

from __future__ import annotations

# Registration: a name, a paper and a summary for a method, mix, selection or transform
from acclimate.adaptation.method import register as register_method
from acclimate.data.mix.base import register as register_mix
from acclimate.data.operations import TRANSFORMS, register as register_selection
from acclimate.parts.masking import register as register_masking
from acclimate.base.registry import Published, build_dataclass, identify_function, load_function, parse_number
from acclimate.base.registry import preset_values, with_presets

from acclimate.merging.base import Merge, ModelName, register as register_merge
from acclimate.merging.merger import Merger
from acclimate.merging.path import Loss as MergeLoss

# Methods
from acclimate.adaptation.method import AdaptContext, Method, Stage, check_single_process
from acclimate.adaptation.methods.lm import LM
from acclimate.tasks.labelled_method import LabelledMethod, check_single_label, encode_pairs, read_columns
from acclimate.adaptation.carried import share_memory
from acclimate.adaptation.importance_measures import measure_importance, summarize_importance
from acclimate.adaptation.new_tokens import load_vectors
from acclimate.adaptation.rules import FISHER_TOKENS, measure_fisher
from acclimate.parts.modules.new_rows import fit_map

# Objectives: a loss over views of the batch
from acclimate.parts.objectives import Batch, BatchObjective, Objective, Outputs, PoolingHead, View, mean_pool
from acclimate.parts.objectives import ClassificationHeads, Distillation, DrawnClassification
from acclimate.parts.objectives import GeneralKnowledgeContrast, LanguageModelling, TextContrast
from acclimate.parts.objectives.base import Gates, mark_text_starts
from acclimate.parts.objectives.contrast import Similarity, similarities
from acclimate.parts.objectives.supervised import DrawnObjective, known_numbers
from acclimate.parts.objectives.vocabulary import cross_entropy
from acclimate.engine.steps import TaskLoss

# Update rules
from acclimate.parts.updates import FreezeOtherRows, PullToStart, SoftMask, UpdateRule, normalize_importance
from acclimate.parts.updates.importance import Reads as ImportanceReads

# Masking, and texts that are drawn or rewritten with the batch
from acclimate.parts.masking import IGNORE_INDEX, Masking
from acclimate.parts.masking import DrawRelations, DrawTriplets, ExtractNGram, MaskNGram, NGramSampler
from acclimate.parts.masking.base import Strategy, Vocabulary
from acclimate.parts.masking.rewriting import RELATIONS, Drawing, DropTokens, Rewriting, make_rows, positions_by_text
from acclimate.parts.masking.selective import SelectiveMasking, check_cap
from acclimate.parts.masking.token_importance_store import TokenImportanceStore, rank_important_tokens
from acclimate.parts.masking.words import SubwordTable, Words
from acclimate.parts.masking.wrappers import RandomSameCount, StaticMasking

# Mixes of sources
from acclimate.data.mix.base import DOMAIN, AdaptiveMix, History, Measure, Mix
from acclimate.data.mix.fixed import Weights, check_names, check_weights, find_weights
from acclimate.data.mix.multiplicative import MultiplicativeMix, expected_steps

# Selections and transforms of documents
from acclimate.data.operations import EXAMPLES, Context as OperationContext, Transform
from acclimate.data.pool import Document, Documents
from acclimate.data.select.control import Budget, fill_tokens
from acclimate.data.select.mentions import EntryFinder, read_entries
from acclimate.data.select.nearest import CHUNK_NUMBERS, MAX_FEATURES, Neighbors
from acclimate.data.select.nearest import embed_chunks, load_embedding, search_neighbors
from acclimate.data.transform.generate import CachedFunction
from acclimate.data.transform.generate import read_documents, read_number, read_rating
from acclimate.data.transform.recipe import BLOCK, Asked, Pieces, Session, TextRecipe, batched
from acclimate.data.transform.sample import Sampler
from acclimate.data.writers import Key as FunctionKey, Writing

# Text: documents, sentences, words, tokens
from acclimate.data.documents import Corpus, as_corpus, format_count
from acclimate.data.fasttext import NEGATIVE_SAMPLING_EXPONENT, Boundary as FastTextBoundary, load_fasttext
from acclimate.data.fasttext import lookup_vector, save_fasttext, train_fasttext
from acclimate.data.fields import PrecisionName, split_name
from acclimate.data.answer_parsing import parse_pairs
from acclimate.data.ngrams import WORD_PATTERN, normalize_words
from acclimate.data.sentences import split_sentences
from acclimate.data.stop_words import read_stop_words
from acclimate.data.surface_forms import SurfaceForm, TextNormalizer, read_surface_forms
from acclimate.data.token_dataset import TokenDataset
from acclimate.data.tokenizing import DecodedDocuments, encode as encode_texts, fingerprint_tokenizer
from acclimate.base.ranking import DECIMALS, best_first, content_order, content_ranks, settle

# Models
from acclimate.models.adapters import share_weights
from acclimate.models.attention import HeadLayer
from acclimate.models.batching import chosen_positions, logit_rows, micro_batch_tokens, token_budget_batches
from acclimate.models.checkpoints import model_files, model_fingerprint
from acclimate.models.compiling import layers_of
from acclimate.models.domain_experts import DomainExperts
from acclimate.models.encoding import decode, encode, encode_visible
from acclimate.models.extensions import DomainAdapters, add_adapters, add_domain_adapters, domain_adapters
from acclimate.models.extensions import EntityVectors, add_entities, has_adapters, keep_original
from acclimate.models.families import family_of, language_head, longest_text, probe_of, step_context
from acclimate.models.gates import PARTS as GATE_PARTS, Part as GatePart, UnitGroup
from acclimate.models.gates import feed_forward_units, gate_units, linear_sizes, parse_parts
from acclimate.models.kinds import ModelKind, kind_of, next_tokens
from acclimate.models.probe import check_reads_left_to_right
from acclimate.models.loading import check_dropout_masks, dropout_rates, load_language_model, virtual_ids
from acclimate.models.prompts import Prompts, add_prompts, prompts_of
from acclimate.models.saving import save_model
from acclimate.evaluation.lm_loss import Memory as MixedMemory, language_model_loss, mix_logits
from acclimate.evaluation.embeddings import is_sentence_encoder, load_encoder, load_pooling_head, pool_first_token
from acclimate.base.device import Precision, autocast, choose_precision, copy_to, default_device, to_device

# End tasks: labelled examples, classifiers and their training
from acclimate.data.task_kinds import load_task, open_task
from acclimate.tasks.finetune import finetune
from acclimate.tasks.head_model import HeadModel, check_finite
from acclimate.tasks.interfaces import ResolvedOptions
from acclimate.tasks.kinds.classification.classifier import Classifier, load_classifier
from acclimate.tasks.kinds.classification.data import Example, Task
from acclimate.tasks.loading import MIN_LENGTH, is_classifier_of, load_with_head
from acclimate.tasks.trainer import TrainingHooks, train as train_task

# Errors and checks of parameters
from acclimate.base.errors import USER_CODE_ERRORS, UserError, check_not_negative, check_positive, check_stop
from acclimate.base.errors import first_line, shorten, unknown_name_error, warn_once

# Files, records, the cache, progress, verbs
from acclimate.base.files import MANIFEST_FILE, atomic_file, atomic_folder, cache_folder, find_file
from acclimate.base.files import check_replaceable, check_report_file, check_writable, hash_file, read_json
from acclimate.base.files import record_files, write_json, write_text
from acclimate.adaptation.method import cache_key, fingerprint_tensors
from acclimate.tasks.training_cache import cache_lock, computation_key
from acclimate.base.locks import with_output_lock
from acclimate.base.options import build, values, verb
from acclimate.base.verbs import Next, show_place
from acclimate.base.progress import Progress, print_message
from acclimate.base.records import Count, Record, fingerprint, texts_fingerprint
from acclimate.base.version import __version__ as VERSION

# fmt: on
register_transform = TRANSFORMS.register

__all__ = sorted(name for name in globals() if not name.startswith("_") and name not in ("annotations", "TRANSFORMS"))
