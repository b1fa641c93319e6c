"""Turn a softmax transformer into a linear-attention one, and use both: dofla's library and commands.

The functions are the commands of the program `dofla`: their keyword arguments are its options (--held-out is
held_out, --lambda is lambda_), with the same defaults, and their results hold what --json prints.

>>> import dofla
>>> model = dofla.Model(folder)
>>> dofla.evaluate(model, data=text, length=64).tokens > 0
True

Errors: dofla.Error for files and devices, ValueError for arguments, both with the words of the program. Its remarks
are warnings. A `progress` function is called with dofla.Progress.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from ._dofla import Error, version as __version__
from ._functions import (compare, distill, dof, estimate, evaluate, finetune, inspect, plan, quantize, sensitivity,
                         teach)
from ._model import Generation, Model, Token
from ._results import (Comparison, DegreesOfFreedom, Distillation, Divergence, Estimate, Evaluation, Finetuning,
                       Inspection, Plan, Quantization, Result, Sensitivity, Teaching)


class TrainingStep(NamedTuple):
    """A step of training, when it is done."""

    step: int  # counted from 1
    loss: float  # NaN if the step was skipped
    learning_rate: float
    tokens_per_second: float
    seconds: float


class Progress(NamedTuple):
    """How far work has come."""

    stage: str
    done: int
    total: int  # 0 when unknown
    unit: str
    training: Optional[TrainingStep]  # where the work is training


__all__ = [
    "Comparison", "DegreesOfFreedom", "Distillation", "Divergence", "Error", "Estimate", "Evaluation", "Finetuning",
    "Generation", "Inspection", "Model", "Plan", "Progress", "Quantization", "Result", "Sensitivity", "Teaching", "Token",
    "TrainingStep", "__version__", "compare", "distill", "dof", "estimate", "evaluate", "finetune", "inspect", "plan",
    "quantize", "sensitivity", "teach",
]
