"""What the functions return: the fields of a command's --json as attributes, and as a table in a notebook."""

from __future__ import annotations

import copy
import html
import keyword
from typing import TYPE_CHECKING, Any

_MOST_ROWS = 100  # of a list in a table


def python_name(name: str) -> str:
    """What Python calls an option or a field: held-out is held_out, lambda is lambda_."""
    name = name.replace("-", "_")
    return name + "_" if keyword.iskeyword(name) else name


class Result:
    """Fields that a command reports, as attributes; lists and fields of fields likewise.

    >>> from dofla import Result
    >>> result = Result({"loss": 2.5, "layers": [{"dof": 3.0}]})
    >>> result.loss, result.layers[0].dof
    (2.5, 3.0)
    >>> result.to_dict()
    {'loss': 2.5, 'layers': [{'dof': 3.0}]}
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        for name, value in fields.items():
            setattr(self, python_name(name), _to_attribute(value))

    if TYPE_CHECKING:  # which fields there are depends on the options

        def __getattr__(self, name: str) -> Any: ...

    def to_dict(self) -> dict[str, Any]:
        """What the command prints with --json; numbers that are not finite are None."""
        return copy.deepcopy(self._fields)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._fields == self._fields

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self._fields.items())
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        return _to_html(self._fields)


class Inspection(Result):
    """What a model is: Model.config, and dofla.inspect."""
    model_type: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    width: int
    vocabulary: int
    context: int
    parameters: int
    bytes: int
    dtype: str
    linear_attention: Result  # of a student


class Quantization(Result):
    """What dofla.quantize did: the size of the weights, and what their rounding costs."""
    bytes: int
    bytes_before: int
    fidelity: Divergence


class Estimate(Result):
    """What training would take on GPUs: of every stage tokens a second, seconds, bytes of a GPU, and whether it fits."""
    weights: float
    stages: list[Result]


class Teaching(Result):
    """What dofla.teach wrote: the share of the probability that the tokens have that are named, and the size."""
    windows: int
    length: int
    top: int
    named: float
    bytes: int


class DegreesOfFreedom(Result):
    """What dofla.dof measures: layers[s].heads[h].dof."""
    coordinates: str
    feature_heads: int
    gram: str
    lambda_: float
    smallest_lambda: float
    samples: int
    draws: int
    sequences: int
    length: int
    seed: int
    model: Result
    layers: list[Result]
    ladder: list[int]  # with errors


class Sensitivity(Result):
    """What dofla.sensitivity measures: layers[s].added, one number for each M of the ladder."""
    model: Result
    feature_heads: int
    coordinates: str
    ladder: list[int]
    steps: int
    batch: int
    recipe: Result
    windows: int
    length: int
    text: Any
    seed: int
    teacher_loss: float
    layers: list[Result]
    exact_keys: Any  # beside exact keys
    key_heads: int
    key_ladder: list[int]  # with memory
    recall: Result  # the order in which key heads save what is lost far back


class Plan(Result):
    """The feature dimensions of every layer, and of every head where they differ."""
    strategy: str
    cost: float
    least: int
    lambda_: float  # of degrees of freedom
    model: Result
    feature_heads: int
    dims: list[int]
    mean: float
    state_bytes: int
    layer_costs: list[Result]  # bytes of a sequence, operations of a token
    heads: list[list[int]]  # where they differ
    by: str
    power: float  # of dof-head
    bound: list[int]  # with bound
    bounds: list[Result]
    ladder: list[int]  # of dof with errors
    predicted: list[float]  # of a sensitivity
    predicted_recall: list[float]  # of a sensitivity with recall windows
    exact_keys: list[Result]  # with memory
    key_heads: int
    memory: int


class Divergence(Result):
    """How far a student is from its teacher on a text, token by token: docs/fidelity.md."""
    windows: int
    tokens: int
    loss: float
    teacher_loss: float
    added_stderr: float
    perplexity: float
    perplexity_ratio: float
    kl: float
    kl_stderr: float
    kl_median: float
    kl_90: float
    kl_95: float
    kl_99: float
    kl_999: float
    kl_max: float
    p_change: float
    p_change_rms: float
    same_top: float
    top5_overlap: float
    entropy_change: float
    calibration: float
    teacher_calibration: float


class Distillation(Result):
    """How good a student is on text that it was not trained on; losses in nats a token."""
    teacher_loss: float
    student_loss: float
    kl: float
    same_top: float
    dims: list[int]
    state_bytes: int
    steps: int
    skipped_steps: int
    seconds: float
    tokens_per_second: float
    attention_error: list[float]
    controls: list[Result]
    fidelity: Divergence
    heads: list[list[int]]  # where they differ
    keys: list[int]  # beside exact keys
    predicted: list[float]  # where the sensitivity was measured
    added: list[float]
    verdict: Result  # with compare
    dry_run: bool  # with dry_run
    step_seconds: float
    peak_bytes: int


class Finetuning(Result):
    """A model before and after every epoch; `kept` is the number of the one that was written."""
    steps: int
    skipped_steps: int
    before: Result
    epochs: list[Result]
    kept: int
    seconds: float
    train_windows: int  # on text
    held_out_windows: int
    fidelity: Divergence  # with a teacher
    verdict: Result  # with compare
    task: str  # on a task
    train_questions: int
    train_truncated: int


class Evaluation(Divergence):
    """Loss and perplexity, with a teacher also the divergence from it; with tasks, last words or recall their own."""
    sequences: list[Result]  # without a teacher
    attention_error: list[float]  # with one
    controls: list[Result]
    tasks: list[Result]  # with tasks
    words: int  # with last words
    acc: float
    acc_stderr: float
    truncated: int
    recall: list[Result]  # with recall
    needle: list[Result]
    induction: list[Result]


class Comparison(Result):
    """Where students can replace their teacher: students[i].verdict, .texts, .worst and more."""
    teacher: Any
    window_tokens: int
    teacher_cost: Result
    teacher_abilities: Result
    yardsticks: list[Result]
    left_out: list[str]
    students: list[Result]


def _to_attribute(value: Any) -> Any:
    if isinstance(value, dict):
        return Result(value)
    if isinstance(value, list):
        return [_to_attribute(one) for one in value]
    return value


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "{…}"
    if isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value):
        return f"[{len(value)} …]"
    if isinstance(value, list) and len(value) > 12:
        return f"[{', '.join(map(_short, value[:12]))}, …]"
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _to_html(value: Any) -> str:
    """Everything that is not a number or a name of ours is escaped: names and texts come from files."""
    if isinstance(value, dict):
        rows = "".join(f"<tr><th style='text-align:left'>{html.escape(str(name))}</th>"
                       f"<td style='text-align:left'>{_to_html(field)}</td></tr>" for name, field in value.items())
        return f"<table>{rows}</table>"
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return _rows_to_html(value)
    if isinstance(value, list) and any(isinstance(one, list) for one in value):
        rows = "".join(f"<tr><td style='text-align:left'>{_to_html(one)}</td></tr>" for one in value[:_MOST_ROWS])
        return f"<table>{rows}</table>{_rest(value)}"
    if isinstance(value, list):
        return " ".join(map(_to_html, value[:_MOST_ROWS])) + _rest(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return html.escape("–" if value is None else str(value))


def _rows_to_html(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    heading = "".join(f"<th>{html.escape(str(name))}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_to_html(row.get(name))}</td>" for name in names) + "</tr>"
                   for row in rows[:_MOST_ROWS])
    return f"<table><tr>{heading}</tr>{body}</table>{_rest(rows)}"


def _rest(rows: list[Any]) -> str:
    return f" … {len(rows) - _MOST_ROWS} more" if len(rows) > _MOST_ROWS else ""
