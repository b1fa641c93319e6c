"""The options of the commands that train."""

from dofla import MODEL, answer, model_tensors, new_path, run, task_folder
from options.checks import check, elsewhere, equal, option
from options.runs import Distilled, Finetuned, ask, distilled, finetuned, plain, student


def apart(a, b, factor=1.0):
    """The largest |a - factor b| over all elements."""
    return max(abs(x - factor * y) for x, y in zip(a, b, strict=True))


# distill

@option("distill", "--out")
def _():
    check((distilled().out / "report.html").exists())


@option("distill", "--cost")
def _():
    check(abs(sum(distilled(cost=6).said["dims"]) / 5 - 6) <= 0.5)


@option("distill", "--strategy")
def _():
    equal(set(distilled(strategy="fix", samples=None).said["dims"]), {4})
    check(len(set(distilled(cost=12).said["dims"])) > 1)


@option("distill", "--power")
def _():
    even = Distilled(strategy="dof-head", power=0)
    equal({m for row in even.said["heads"] for m in row}, {4})
    uneven = Distilled(strategy="dof-head", cost=12, power=2)
    check(len({m for row in uneven.said["heads"] for m in row}) > 1)


@option("distill", "--plan")
def _():
    file = new_path("plan.json")
    dims = ask("plan", cost=3, strategy="dof", out=file)["dims"]
    equal(Distilled(cost=None, samples=None, plan=file).said["dims"], dims)


@option("distill", "--least")
def _():
    check(min(Distilled(cost=8, least=7).said["dims"]) >= 7)
    run(*plain("distill", cost=8, least=9), code=1)


@option("distill", "--by")
def _():
    by = {name: Distilled(strategy="sensitivity", samples=None, by=name) for name in ("layer", "head")}
    check("heads" in by["head"].said and "heads" not in by["layer"].said)
    equal(by["layer"].about["by"], "layer")


@option("distill", "--start")
def _():
    first = distilled()
    again = Distilled(cost=None, samples=None, start=first.out, steps=0)
    check(again.same(first))


@option("distill", "--lambda")
def _():
    other = distilled(cost=12, **{"lambda": 0.5})
    equal(other.about["lambda"], 0.5)
    check(other.said["dims"] != distilled(cost=12).said["dims"])


@option("distill", "--samples")
def _():
    # The leverage scores are of these samples, and so are the degrees of freedom.
    few, many = (Distilled(strategy="fix", init="leverage", samples=n) for n in (16, 32))
    equal(few.about["samples"], 16)
    check(not few.same(many))


@option("distill", "--features")
def _():
    for name, steps in (("performer", None), ("dijiang", 2)):
        equal(distilled(features=name, steps=steps).about["feature_map"], name)


@option("distill", "--coordinates")
def _():
    equal(distilled().about["coordinates"], "balanced")
    raw = distilled(coordinates="raw")
    equal(raw.about["coordinates"], "raw")
    # Other weights of queries and keys, and no others.
    teacher, plain, other = (model_tensors(p) for p in (MODEL, raw.out, distilled().out))
    check(all(plain[name] == tensor for name, tensor in teacher.items()))
    moved = {name for name, tensor in teacher.items() if other[name][2] != tensor[2]}
    check(moved and all(".q_proj." in name or ".k_proj." in name for name in moved), str(moved))


@option("distill", "--init")
def _():
    iid = distilled(init="iid")
    equal(iid.about["init"], "iid")
    check(not iid.same(distilled()))


@option("distill", "--loss")
def _():
    names = ["softmax", "l2", "attention-mse", "direct", "kl"]
    trained = [distilled(loss=name) for name in names]
    equal([one.about["loss"] for one in trained], names)
    check(not any(a.same(b) for a in trained for b in trained if a is not b))


@option("distill", "--mask")
def _():
    full = distilled(mask="full")
    equal((full.about["mask"], distilled().about["mask"]), ("full", "causal"))
    check(not full.same(distilled()))
    check(distilled(mask="causal").same(distilled()))


@option("distill", "--steps")
def _():
    equal(distilled(steps=3).said["steps"], 3)
    check(not distilled(steps=3).same(distilled()))


@option("distill", "--batch")
def _():
    equal(distilled(batch=1).about["batch"], 1)
    check(not distilled(batch=1).same(distilled()))


@option("distill", "--lr-z")
def _():
    still, start = distilled(lr_z=0), distilled(steps=0)
    equal(still.z, start.z)
    check(still.alpha != start.alpha)


@option("distill", "--lr-alpha")
def _():
    still, start = distilled(lr_alpha=0), distilled(steps=0)
    equal(still.alpha, start.alpha)
    check(still.z != start.z)


@option("distill", "--held-out")
def _():
    equal(distilled(held_out=3).about["train_windows"], distilled().about["train_windows"] - 1)
    check(distilled(held_out=3).said["teacher_loss"] != distilled().said["teacher_loss"])


@option("distill", "--seed")
def _():
    equal(distilled(seed=1).about["seed"], 1)
    check(distilled(seed=0).same(distilled()))
    check(not distilled(seed=1, steps=0).same(distilled(steps=0)))  # other features,
    on = {"cost": None, "samples": None, "start": distilled().out}
    check(not Distilled(seed=1, **on).same(Distilled(seed=0, **on)))  # and other batches


@option("distill", "--recompute")
def _():
    # Less memory, and the same bits.
    check(Distilled(loss="direct", recompute=True).same(distilled(loss="direct")))


@option("distill", "--dry-run")
def _():
    out = new_path()
    check(ask("distill", out=out, dry_run=True)["dry_run"])
    check(not out.exists())


elsewhere("distill", "--checkpoint-every", "KilledAndResumedEndsInTheSameBytes",
          "shows only in a run that is killed between two checkpoints")
elsewhere("distill", "--checkpoint-minutes", "ACheckpointIsAlsoWrittenByTime",
          "shows only in a run that is killed")
elsewhere("distill", "--log", "LogsEveryStepOnceAlsoAfterAResume",
          "is read beside a run that is stopped and goes on")
elsewhere("distill", "--resume", "KilledAndResumedEndsInTheSameBytes",
          "goes on with a run that was killed")


# finetune

@option("finetune", "--out")
def _():
    check((finetuned().out / "model.safetensors").exists())


@option("finetune", "--task", "--task-data", "--limit", "--evaluate-limit")
def _():
    arguments = ["finetune", MODEL, "--task", "piqa", "--task-data", task_folder(), "--epochs", 1]
    all_of_them = answer(*arguments, "--out", new_path())
    equal((all_of_them["task"], all_of_them["train_questions"]), ("piqa", 7))
    equal(all_of_them["before"]["questions"], 5)
    equal(answer(*arguments, "--out", new_path(), "--limit", 4)["train_questions"], 4)
    fewer = answer(*arguments, "--out", new_path(), "--evaluate-limit", 3)
    equal((fewer["before"]["questions"], fewer["train_questions"]), (3, 7))


@option("finetune", "--held-out")
def _():
    other = finetuned(held_out=3).said
    equal((other["held_out_windows"], other["train_windows"]), (3, 7))


@option("finetune", "--teacher")
def _():
    equal(finetuned(teacher=MODEL).about["teacher"], str(MODEL))
    check(finetuned(teacher=MODEL).said["epochs"][0]["loss"] != finetuned().said["epochs"][0]["loss"])


@option("finetune", "--epochs")
def _():
    equal(len(finetuned(epochs=2).said["epochs"]), 2)


@option("finetune", "--batch")
def _():
    equal((finetuned(batch=3).said["steps"], finetuned().said["steps"]), (3, 1))


@option("finetune", "--lr")
def _():
    # One step of Adam is as long as the learning rate says.
    start = model_tensors(student())
    twice = finetuned(lr=2e-3)
    for name, (_, _, values) in finetuned().weights.items():
        before = start[name][2]
        once = [a - b for a, b in zip(values, before)]
        far = [a - b for a, b in zip(twice.weights[name][2], before)]
        check(apart(far, once, 2) < 1e-6, name)
        check(max(map(abs, once)) > 1e-4, name)


@option("finetune", "--feature-rate")
def _():
    start = model_tensors(student())
    still = finetuned(feature_rate=0)
    equal(still.weights, finetuned().weights)  # after one step
    for name, (_, _, values) in still.features.items():
        equal(values, start[name][2])
        if name.endswith((".map", ".shift")):  # coordinates, which are not trained
            equal(finetuned().features[name][2], start[name][2])
            continue
        once = [a - b for a, b in zip(finetuned().features[name][2], start[name][2])]
        far = [a - b for a, b in zip(finetuned(feature_rate=3).features[name][2], start[name][2])]
        check(max(map(abs, once)) > 1e-4, name)
        rounding = 2**-22 * max(map(abs, values))
        check(apart(far, once, 3) < 1e-6 + 4 * rounding, name)


@option("finetune", "--weight-decay")
def _():
    # w − η (step + W w) for matrices; norms, biases and features go without.
    start = model_tensors(student())
    decayed = finetuned(weight_decay=0.5)
    equal(decayed.features, finetuned().features)
    matrices = 0
    for name, (_, shape, values) in finetuned().weights.items():
        less = [a - b for a, b in zip(decayed.weights[name][2], values)]
        if len(shape) < 2:
            check(not any(less), name)
            continue
        matrices += 1
        check(apart(less, start[name][2], -1e-3 * 0.5) < 1e-6, name)
        check(any(less), name)
    check(matrices > 0)


@option("finetune", "--clip")
def _():
    # A step of Adam does not depend on the size of the gradients, two steps do.
    check(not finetuned(batch=4, clip=1e-3).same(finetuned(batch=4, clip=0)))
    equal(finetuned(batch=4, clip=1e-3).about["clip"], 1e-3)


@option("finetune", "--warmup")
def _():
    # The only step of a run has the whole rate whatever the share; of two, the first has half.
    check(finetuned(warmup=0.9).same(finetuned()))
    rising, falling = finetuned(batch=4, warmup=0.9), finetuned(batch=4)
    equal((rising.about["warmup"], rising.said["steps"]), (0.9, 2))
    check(not rising.same(falling))
    check(rising.said["epochs"][0]["loss"] != falling.said["epochs"][0]["loss"])


@option("finetune", "--seed")
def _():
    equal(finetuned(batch=2, seed=1).about["seed"], 1)
    check(not finetuned(batch=2, seed=1).same(finetuned(batch=2)))


@option("finetune", "--recompute")
def _():
    check(Finetuned(recompute=True).same(finetuned()))


elsewhere("finetune", "--checkpoint-every", "KilledAndResumedEndsInTheSameBytes",
          "shows only in a run that is killed between two checkpoints")
elsewhere("finetune", "--checkpoint-minutes", "ACheckpointIsAlsoWrittenByTime",
          "shows only in a run that is killed")
elsewhere("finetune", "--log", "LogsEveryStepOnceAlsoAfterAResume",
          "is read beside a run that is stopped and goes on")
elsewhere("finetune", "--resume", "KilledAndResumedEndsInTheSameBytes",
          "goes on with a run that was killed")
