"""Options of sentence embeddings: those of their fine-tuning, and those of ``generate-queries``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from acclimate.adaptation.options import Overwrite
from acclimate.base.bounds import Count
from acclimate.base.options import DATA, METHOD, OUTPUT, Option, options
from acclimate.base.registry import PartLike
from acclimate.base.verbs import TRAIN, register_verb
from acclimate.data.fields import Progress, Seed, TextInput, read_counts
from acclimate.data.options import DryRun
from acclimate.data.reading import TextOptions

if TYPE_CHECKING:
    Function = str | Callable[..., Any]
else:
    Function = Any


def _lasting(model: str | Path | None) -> str | Path | None:
    """Return a folder by its whole path, so that the record of a training finds it from anywhere."""
    return str(folder.resolve()) if model is not None and (folder := Path(model).expanduser()).is_dir() else model


@options
class EmbeddingOptions:
    """Options of fine-tuning that apply only to embeddings of sentences."""

    _: KW_ONLY
    similarity: Annotated[
        Any,
        Option(
            "Pairs of sentences, with or without scores, on which a retrieval model is measured before and after.",
            DATA,
            default="not measured",
            more="A file, a folder, rows in memory or a loaded task of similarity or retrieval, to see whether the "
            "embeddings still show similarity in general; or a folder with several folders in the layout of BEIR, "
            "such as NanoBEIR, whose nDCG@10 is measured. A drop whose interval excludes zero is a warning.",
            study=False,
        ),
    ] = None
    contrastive: Annotated[
        bool,
        Option(
            "Train a sentence encoder on pairs of examples, then a logistic regression on its vectors (SetFit).",
            METHOD,
            more="For classification of single texts with few labels. In each epoch every example is paired with one "
            "of its class and one of another. With ``epochs=0`` only the regression is trained.",
            study=False,
        ),
    ] = False
    hard_negatives: Annotated[
        Literal["bm25", "model"] | None,
        Option(
            "Mine a hard negative for each pair of a retrieval task, with BM25 or the model before training.",
            METHOD,
            default="those that the task has, if every query has one",
            more="Drawn from the 50 best documents that are not known as relevant.",
            study=False,
        ),
    ] = None
    adapter: Annotated[
        PartLike | None,
        Option(
            "Low-rank adapter that a retrieval or generation model trains, such as 'lora r=8'; merged when saved.",
            METHOD,
            default="all weights are trained",
            more="It needs a higher learning rate, such as 3e-4. ``acclimate merge --method skill`` adds what it "
            "learned to other models of the same base.",
            study=False,
        ),
    ] = None
    dimensions: Annotated[
        tuple[Count, ...],
        BeforeValidator(read_counts),
        Option(
            "Numbers of leading dimensions at which a retrieval model is measured, too, such as 256,128,64.",
            METHOD,
            default="all of them only",
            more="What a search that keeps only these loses, as with ``truncate_dim`` of sentence-transformers.",
        ),
    ] = ()
    matryoshka: Annotated[
        bool,
        Option(
            "Train a retrieval model at each of the dimensions as well, so that cut vectors lose less.",
            METHOD,
            more="The sum of the losses of all cuts and of the whole vector (Kusupati et al., 2022).",
        ),
    ] = False
    rerank: Annotated[
        bool,
        Option(
            "Train and measure a cross-encoder, which reranks the 100 best documents that BM25 finds.",
            METHOD,
            more="With binary cross-entropy on pairs of query and document, up to four of them hard negatives per "
            "relevant document. ``CrossEncoder`` of sentence-transformers loads the result.",
        ),
    ] = False
    first_stage: Annotated[
        str | Path | None,
        AfterValidator(_lasting),
        Option(
            "Sentence encoder that finds the documents to rerank.",
            METHOD,
            default="BM25",
            study=False,
        ),
    ] = None
    sparse: Annotated[
        bool,
        Option(
            "Measure a masked language model or a SparseEncoder by its weights of words (SPLADE), with epochs=0.",
            METHOD,
            more="The maximum over the tokens of log(1 + relu(logit)), compared by dot products.",
        ),
    ] = False

    @model_validator(mode="after")
    def check_embeddings(self) -> Any:
        """Check that options of embeddings fit together."""
        if self.matryoshka and not self.dimensions:
            raise ValueError(
                "'matryoshka' trains at several 'dimensions': give them, such as 256,128,64, or remove it"
            )
        if self.matryoshka and getattr(self, "epochs", None) == 0:
            raise ValueError("'matryoshka' is a way to train: set epochs to at least 1, or remove it")
        names = ("hard_negatives", "adapter", "dimensions", "contrastive")
        given = ["similarity"] * (self.similarity is not None) + [name for name in names if getattr(self, name)]
        if given and (self.rerank or self.sparse):
            instead = "rerank" if self.rerank else "sparse"
            raise ValueError(f"'{given[0]}' is for dense vectors, which '{instead}' does not use; remove one of them")
        if self.sparse and (self.rerank or getattr(self, "epochs", 0) != 0):
            raise ValueError("'sparse' measures a model as it is: set epochs to 0 without 'rerank', or remove it")
        return self


@options
class GenerateQueriesOptions(TextOptions):
    """Options of :func:`acclimate.generate_queries`."""

    corpus: Annotated[TextInput, Option("Passages: file, folder, glob or hf:NAME.", DATA, many=True)]
    generator: Annotated[
        Function,
        Option(
            "Python function that returns the queries of a passage, as FILE.py:FUNCTION, or a model.",
            METHOD,
            more="It gets the text of a passage, and returns a string or a list of them. A model is given as "
            "'http://HOST:PORT/v1 model=NAME' or 'model:PATH'; it writes a query per line.",
        ),
    ]
    out: Annotated[str | Path, Option("Output directory.", OUTPUT, recorded=False)]
    _: KW_ONLY
    queries: Annotated[Count, Option("Maximum queries per passage.", METHOD)] = 3
    passages: Annotated[
        Count | None, Option("Maximum passages, drawn from the text.", DATA, default="all of the text")
    ] = None
    negatives: Annotated[
        str,
        Option("What finds a hard negative for each query: bm25, a model folder or name on the Hub, or none.", METHOD),
    ] = "bm25"
    consistent: Annotated[
        Count | None,
        Option(
            "Keep a query only if its passage is among this many best.",
            METHOD,
            default="all are kept",
            more="They are found by what finds the negatives; by BM25 with ``negatives=none``.",
        ),
    ] = None
    scorer: Annotated[
        Function | None,
        Option(
            "Python function of a query and a passage that returns how relevant it is, such as a cross-encoder; or a "
            "model.",
            METHOD,
            default="none: all negatives count the same",
            more="The model then learns the difference of the scores of passage and negative (margin-MSE).",
        ),
    ] = None
    seed: Annotated[Seed, Option("Random seed of the choice of negatives.", METHOD)] = 0
    overwrite: Overwrite = False
    progress: Progress = True


@register_verb(
    "generate-queries",
    "acclimate.tasks.kinds.retrieval.generation:generate_queries",
    dry_run="plan_queries",
    show="show_queries",
    example="acclimate generate-queries --corpus passages.jsonl --generator queries.py:write --out generated/",
    page="docs/data.md",
    section=TRAIN,
    order=5,
)
@options
class GenerateQueriesCommand(GenerateQueriesOptions):
    """Build a retrieval dataset from unlabelled passages with a query generator (GPL)."""

    _: KW_ONLY
    dry_run: DryRun = False
