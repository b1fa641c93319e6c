# %% [markdown]
# # From a softmax model to a hybrid student
# A script of cells: open it in VS Code, Jupyter (with jupytext) or Spyder, or run it: `python3 examples/notebook.py`.
# The cells take the built-in model and text; on two cores all of it takes a minute or two.

# %%
from pathlib import Path
from tempfile import mkdtemp

import dofla

# None: the model and the text that come with dofla.
TEACHER, TEXT, STEPS, LENGTH = None, None, 40, 256
out = Path(mkdtemp(prefix="dofla-"))
dofla.inspect(TEACHER)

# %% [markdown]
# What does each layer add to the loss when it alone is not softmax attention?

# %%
sensitivity = dofla.sensitivity(TEACHER, data=TEXT, length=LENGTH, sequences=64, memory="400kB")
for number, layer in enumerate(sensitivity.layers, 1):
    print(f"layer {number}: {layer.added[-1]:.4f} nats a token")

# %% [markdown]
# A plan spends bytes where they save most of it: exact keys and features of every head.

# %%
plan = dofla.plan(sensitivity, memory="400kB")
plan

# %%
def show(update):
    if update.training and update.training.step % 10 == 0:
        print(f"step {update.training.step} of {update.total}: loss {update.training.loss:.4f}")


student = dofla.distill(TEACHER, data=TEXT, length=LENGTH, sequences=64, plan=plan, steps=STEPS, out=out / "student",
                        progress=show)
print(f"teacher {student.teacher_loss:.4f}, student {student.student_loss:.4f} nats a token, "
      f"{student.state_bytes:,} bytes a sequence")
student

# %% [markdown]
# The student is a model like any other; what it writes comes token by token.

# %%
model = dofla.Model(out / "student")
for token in model.generate("The river flows", max_tokens=40, seed=1):
    print(token.text, end="", flush=True)
print()

# %% [markdown]
# Where does it differ from its teacher? The logits of both are numpy arrays.

# %%
import numpy as np

teacher = dofla.Model(TEACHER)
ids = teacher.encode("The river flows through the valley.")
log_p, log_q = (logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
                for logits in (teacher.logits(ids), model.logits(ids)))
kl = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
for token, divergence in zip(ids, kl):
    print(f"{teacher.decode([token])!r:12} {divergence:.4f}")
