"""Rows of the results of a study.

In all rows ``model`` is the name of the base model, ``method`` a row label, and ``seeds`` are fine-tuning seeds.
``task`` in a row about an adapted model is the task that it was adapted for alone, and None if it was adapted for the
whole domain.
"""

from __future__ import annotations

from dataclasses import field, fields, replace
from typing import Any, Self

from acclimate.base.records import Record, flattened, optional

HELPED, NO_DIFFERENCE, HURT = "helped", "no difference shown", "hurt"
WITHHELD = "no verdict"
"""Instead of a verdict: one adaptation or one seed, so the variance between trainings is unknown."""
NOT_LEARNED = "not learned"
"""Instead of a verdict: no model of either side is better than chance, or the base model has not learned the task."""
BETTER, WORSE = "better", "worse"
"""Verdicts on a model whose evaluation is finished, and which may be no adaptation of the reference."""
TOO_FEW_GROUPS = "too few groups"
"""Instead of a verdict: too few independent items or groups of items."""
VERDICTS = (HELPED, BETTER, HURT, WORSE, NO_DIFFERENCE, WITHHELD, NOT_LEARNED, TOO_FEW_GROUPS)
"""The verdicts on a method, in the words that files, reports and terminals have."""
UNANSWERED = (WITHHELD, NOT_LEARNED, TOO_FEW_GROUPS)
OF_SIGN = {1: HELPED, 0: NO_DIFFERENCE, -1: HURT}
"""Verdicts by the sign of the difference; 0 if it is not significant."""
SIGNIFICANCE = 0.05
"""A difference is significant if its p-value, corrected where there is a correction, is below this."""
NOTHING_LEARNED = "Not learned: the models have not learned the task, so they cannot show whether adaptation helps."
"""The result of a study in which no comparison has an answer for this reason."""


def sign_of(low: float, high: float) -> int:
    """Return 1 if a whole interval is above zero, -1 if it is below, else 0."""
    return (low > 0) - (high < 0)


def judge(low: float, high: float, is_error: bool = False) -> str:
    """Return the verdict that the interval of a difference shows; ``is_error``: lower values are better."""
    sign = sign_of(low, high)
    return OF_SIGN[-sign if is_error else sign]


class Interval(Record):
    """A paired difference with its 95 % interval.

    Attributes:
        difference: Method minus baseline, in the unit of the metric.
        p: Two-sided p-value of the bootstrap; None without a verdict.
        verdict: One of :data:`VERDICTS`; of an error or a loss, a lower value has helped.
    """

    difference: float
    low: float
    high: float
    p: float | None
    verdict: str

    def without_verdict(self, reason: str) -> Self:
        """Return a copy with a reason instead of a verdict and without p-values."""
        nothing: dict[str, Any] = {one.name: None for one in fields(self) if one.name.startswith("p")}
        return replace(self, verdict=reason, **nothing)

    @property
    def is_answered(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict not in UNANSWERED


class Comparison(Interval):
    """The difference in one metric between a method and what it is compared with.

    Once ``p_holm`` is known, no difference is shown if it is not significant after the correction.

    Attributes:
        before: Mean over seeds of what the method is compared with.
        after: Mean over seeds of the method.
        p_models: p-value of a permutation test over test items, for these models (not over seeds).
        p_t: p-value of a paired t-test of the scores over seeds; None with fewer than two.
        p_holm: ``p`` after Holm's correction for all comparisons of the table; only for the metric of the task.
    """

    before: float
    after: float
    p_models: float | None = None
    p_t: float | None = None
    p_holm: float | None = optional()

    def __post_init__(self) -> None:
        """Let the verdict follow the corrected p-value, also in results that were stored without this."""
        if self.is_answered and self.p_holm is not None and self.p_holm >= SIGNIFICANCE:
            self.verdict = NO_DIFFERENCE

    def correct(self, p_holm: float) -> None:
        """Set the corrected p-value of a metric of which higher is better, and the verdict by it."""
        self.p_holm = p_holm
        if self.is_answered:
            self.verdict = judge(self.low, self.high) if p_holm < SIGNIFICANCE else NO_DIFFERENCE

    @property
    def is_lost_by_correction(self) -> bool:
        """Whether the interval excludes zero, but the difference is not significant after the correction."""
        return self.verdict == NO_DIFFERENCE and (self.low > 0 or self.high < 0)


def verdict_word(entry: Interval) -> str:
    """Return the verdict, with a note if the difference was significant before the correction."""
    lost = isinstance(entry, Comparison) and entry.is_lost_by_correction
    return entry.verdict + " after correction" * lost


class Comparisons(Record):
    """The differences between a method and what it is compared with, by metric.

    Attributes:
        seeds: Fine-tuning seeds that both sides have.
        metrics: Comparisons by metric; each metric is a key of the record in the JSON.
    """

    seeds: list[int]
    metrics: dict[str, Comparison] = flattened()


class MetricSummary(Record):
    """A metric over the seeds of a row.

    Attributes:
        sd: Standard deviation over seeds; None for one seed.
        by_seed: The values, in the order of the row's seeds.
    """

    mean: float
    sd: float | None = None
    by_seed: list[float]


class TaskScores(Record):
    """Scores of one method on one end task, over the seeds of fine-tuning.

    Attributes:
        model: Name of the base model, or of the student of a distillation.
        metric: The metric that the task is evaluated on.
        metrics: All metrics of the task.
        errors: Further measures, in the unit of the target; lower is better.
        test_units: Number of groups of test items that are resampled as one, such as documents; None for single items.
        group_name: Name of such a group, such as document; None for single items.
        test_set: Identity of the test items; rows with the same one are not independent.
        collapsed: Number of seeds whose model gives nearly all test items the same answer.
        seconds: Mean duration of one fine-tuning, in seconds.
        summaries: Each metric and the calibration errors, over seeds; each is a key of the row in the JSON.
        difference: Comparison with the baseline; None for the baseline itself.
    """

    model: str
    domain: str
    task: str
    method: str
    metric: str
    kind: str = "single_label"
    metrics: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    test_items: int = 0
    test_units: int | None = optional()
    group_name: str | None = optional()
    test_set: str | None = optional()
    train_size: int | None = None
    precisions: list[str] = field(default_factory=list)
    collapsed: int = 0
    seconds: float = 0.0
    summaries: dict[str, MetricSummary] = flattened()
    difference: Comparisons | None = optional()

    @property
    def comparison(self) -> Comparison | None:
        """The comparison in the metric of the task; None if there is none."""
        return self.difference.metrics[self.metric] if self.difference else None


class ConfidenceBin(Record):
    """Predictions of about the same confidence."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


class Learning(Record):
    """Whether fine-tuning of the base model has learned a task.

    Attributes:
        probe: Fine-tuning compared with a linear model on the frozen states of the base model; None without a probe.
        falling: Number of seeds whose training loss still fell steeply at the end.
        seeds: Number of seeds.
    """

    probe: Comparison | None = optional()
    falling: int = 0
    seeds: int = 0

    @property
    def is_below_probe(self) -> bool:
        """Whether fine-tuning scores less than the linear model, with an interval that excludes zero."""
        return self.probe is not None and self.probe.high < 0

    @property
    def is_unfinished(self) -> bool:
        """Whether the training loss still fell steeply at the end with most seeds."""
        return 2 * self.falling > self.seeds

    @property
    def has_learned(self) -> bool:
        """Whether neither is the case."""
        return not (self.is_below_probe or self.is_unfinished)


class ScoreRow(TaskScores):
    """Scores on a task of the domain, compared with the baseline.

    Attributes:
        learning: Whether the base model has learned the task; only in its row.
        reliability: Predictions of all seeds by confidence; None for kinds of tasks without probabilities.
        stage_seconds: Seconds of each stage that produces one such model, and their ``sum``.
    """

    learning: Learning | None = optional()
    reliability: list[ConfidenceBin] | None = optional()
    stage_seconds: dict[str, float] = field(default_factory=dict)


class ForgettingRow(TaskScores):
    """Scores on a task of another domain, compared with the base model.

    Attributes:
        adapted_for: The task that the model was adapted for alone; None if it was adapted for the whole domain.
        before: Mean score of the base model in the metric of the task.
    """

    adapted_for: str | None = optional()
    before: float | None = optional()


class LossRow(Record):
    """Language-model loss on held-out text, before and after adaptation.

    Attributes:
        text: ``"domain"`` or ``"general"``.
        nats: Mean loss after adaptation in nats per predicted token, over seeds of adaptation.
        by_seed: The same for each seed of adaptation.
        bits_per_byte: The same loss per byte of UTF-8, which compares across vocabularies.
        before: Loss of the base model; None if the two cannot be compared.
        bits_per_byte_before: Loss of the base model per byte.
        difference: After minus before, in nats per predicted token.
        bits_per_byte_difference: After minus before, in bits per byte; only of causal models, and also if the
            tokenizers differ.
        percent: The difference in nats in percent of ``before``.
        kind: Name of the kind of the model, which names the loss; None for a masked model.
    """

    model: str
    domain: str
    text: str
    task: str | None = optional()
    method: str
    nats: float
    by_seed: list[float] = field(default_factory=list)
    adapt_seeds: list[int | None] = field(default_factory=list)
    texts: int = 0
    masked: int | None = None
    bits_per_byte: float | None = optional()
    before: float | None = optional()
    bits_per_byte_before: float | None = optional()
    difference: Interval | None = optional()
    bits_per_byte_difference: Interval | None = optional()
    percent: float | None = None
    kind: str | None = optional()


class DistillationRow(Record):
    """A distillation: scores of teacher and student, and how far they agree; means over seeds.

    Attributes:
        model: Name of the student.
        distilled_epochs: Epochs of the first phase.
        disagreement: Units that are active in only one of teacher and student (Eq. 4 of DoKTra): before the first
            epoch, then after each.
        teacher_seconds: Duration of the fine-tuning of the teacher.
        seconds: Duration of the distillation.
    """

    model: str
    domain: str
    task: str
    method: str
    metric: str
    teacher: float
    before: float
    after: float
    units: int
    distilled_epochs: int
    disagreement: list[float]
    teacher_seconds: float = 0.0
    seconds: float = 0.0


class VerdictCount(Record):
    """On how many tasks a method helped or hurt.

    Attributes:
        tasks: Tasks with a comparison.
        test_sets: Number of distinct test sets of these; results on one test set are not independent.
        unanswered: Tasks without a verdict.
        above: Tasks whose interval lies above zero, before Holm's correction.
        below: Tasks whose interval lies below zero, before the correction.
        helped: Tasks on which it helped, after the correction.
        hurt: Tasks on which it hurt, after the correction.
    """

    model: str
    method: str
    tasks: int
    test_sets: int = 0
    unanswered: int = 0
    above: int
    below: int
    helped: int
    hurt: int


class MeanRow(Record):
    """The mean of a method over all tasks of the study, each in its own metric.

    Attributes:
        tasks: Number of tasks.
        test_sets: Number of distinct test sets; the items of one are resampled together for all tasks that have it.
        score: Mean over tasks, over the seeds that all tasks have.
        difference: Mean over tasks of the difference to the baseline; None for the baseline itself.
        rank: Mean over tasks of the rank of the mean score among the methods with such a row; 1 is the best, and equal
            scores share the mean of their ranks.
        standardized: Mean over tasks of the difference divided by the standard deviation that the score of the
            baseline has with one test item; None for the baseline.
        constant: Tasks left out of it, because that is zero: all answers of the baseline count the same.
    """

    model: str
    method: str
    tasks: int
    test_sets: int = 0
    score: MetricSummary
    difference: Interval | None = optional()
    rank: float | None = optional()
    standardized: Interval | None = optional()
    constant: list[str] | None = optional()


class TrialRow(Record):
    """A combination of settings that a search tried.

    Attributes:
        state: ``"done"``, ``"failed"`` or ``"missing"``.
        by_seed: The scores of each seed.
        ece: Expected calibration error on dev; None for kinds of tasks without probabilities.
    """

    settings: dict[str, Any]
    state: str
    score: float | None = optional()
    by_seed: list[float] | None = optional()
    ece: float | None = None
    chosen: bool = False


class SearchRow(Record):
    """A search on the dev split.

    Attributes:
        stage: ``"method"``, ``"teacher"`` or ``"distillation"``.
        model: Name of the model; empty for a teacher.
        methods: Labels of the methods that share the chosen settings.
        tolerance: Maximum distance from the best mean score; within it, the best calibrated settings are chosen.
        chosen: The chosen settings; None if none could be chosen.
    """

    stage: str
    model: str
    domain: str
    task: str
    methods: list[str]
    metric: str
    tolerance: float
    seeds: list[int]
    possible: int
    tried: int
    chosen: dict[str, Any] | None = None
    trials: list[TrialRow] = field(default_factory=list)


class ContaminatedTexts(Record):
    """Number of texts of a split of a task that were found in other text.

    Attributes:
        short: Texts of fewer than eight words, which are found as whole documents only.
        found: Texts that were found.
        exact: Texts that equal a document.
        near: Texts that nearly equal a document.
        contained: Texts that a document contains.
        groups: Groups of the split, such as documents; None if they are not known, or other text was searched.
        groups_in_train: The groups among them that also have rows in the train split.
        group_name: Name of a group, in the singular.
    """

    task: str
    split: str
    texts: int
    short: int
    found: int
    exact: int
    near: int
    contained: int
    groups: int | None = optional()
    groups_in_train: int | None = optional()
    group_name: str | None = optional()

    @property
    def shared_groups(self) -> str:
        """The number of shared groups in words; empty if groups are not known."""
        return f"{self.groups_in_train:,} of {self.groups:,} {self.group_name}s" if self.groups else ""


class ContaminationRow(Record):
    """Dev and test texts that were found in the corpus of a domain, or in a train split.

    Attributes:
        train_of: Name of the task whose train split was searched; None for a corpus.
        rules: Thresholds of a match: :class:`acclimate.data.contamination.MatchRules`.
        flagged: Number of documents that contain such a text.
        removed: Whether the flagged documents were left out.
    """

    domain: str
    train_of: str | None = optional()
    rules: dict[str, float] = field(default_factory=dict)
    documents: int = 0
    flagged: int = 0
    texts: list[ContaminatedTexts] = field(default_factory=list)
    removed: bool = False
