"""The commands that measure, plan, train and judge. _functions.pyi, made by stubs.py, has their types."""

from ._commands import command
from ._results import (Comparison, DegreesOfFreedom, Distillation, Estimate, Evaluation, Finetuning, Inspection,
                       Plan, Quantization, Sensitivity, Teaching)


@command(Inspection)
def inspect():
    """
    >>> dofla.inspect(folder).layers
    5
    """


@command(DegreesOfFreedom)
def dof():
    """
    >>> table = dofla.dof(folder, data=text, length=64, samples=64, out=scratch / "dof.json")
    >>> len(table.layers), len(table.layers[0].heads)
    (5, 4)
    >>> all(layer.dof > 0 for layer in table.layers)
    True
    """


@command(Sensitivity)
def sensitivity():
    """
    >>> table = dofla.sensitivity(folder, data=text, length=32, ladder=[4, 16], steps=2, held_out=2)
    >>> table.ladder
    [4, 16]
    """


@command(Plan)
def plan():
    """FILE may also be what dofla.sensitivity returned, and what this returns the plan of dofla.distill.

    >>> plan = dofla.plan(scratch / "dof.json", cost=16, strategy="dof")
    >>> len(plan.dims), round(plan.mean)
    (5, 16)
    """


@command(Distillation)
def distill():
    """
    >>> student = dofla.distill(folder, data=text, length=32, cost=8, strategy="fix", steps=2, held_out=2,
    ...                         out=scratch / "student")
    >>> student.dims
    [8, 8, 8, 8, 8]
    >>> dofla.inspect(scratch / "student").linear_attention.feature_map
    'untied'

    Ctrl-C finishes the step and keeps the run beside `out`; the same call with resume=True goes on.
    """


@command(Teaching)
def teach():
    """
    >>> said = dofla.teach(folder, data=text, length=32, top=64, out=scratch / "teacher")
    >>> said.top, 0.5 < said.named < 1
    (64, True)
    """


@command(Finetuning)
def finetune():
    """
    >>> tuned = dofla.finetune(scratch / "student", teacher=folder, data=text, length=32, epochs=1, held_out=2,
    ...                        out=scratch / "tuned")
    >>> tuned.kept in (0, 1)
    True
    """


@command(Evaluation)
def evaluate():
    """
    >>> dofla.evaluate(folder, data=text, length=64).perplexity > 1
    True
    >>> dofla.evaluate(folder, ids=[[1, 2, 3, 4], [5, 6, 7]]).tokens
    5
    """


@command(Quantization)
def quantize():
    """
    >>> rounded = dofla.quantize(folder, data=text, length=32, out=scratch / "int8")
    >>> rounded.bytes < rounded.bytes_before
    True
    """


@command(Estimate)
def estimate():
    """
    >>> [stage.stage for stage in dofla.estimate(folder, gpus=2).stages][:2]
    ['distill', 'distill --loss kl']
    """


@command(Comparison)
def compare():
    """STUDENT is one folder or a list of them.

    >>> report = dofla.compare(folder, scratch / "student", texts=text, length=32, windows=2)
    >>> len(report.students)
    1
    """
