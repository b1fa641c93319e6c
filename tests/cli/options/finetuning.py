"""The options of finetune."""

from dofla import MODEL, answer, model_tensors, new_path, task_folder
from options.checks import apart, check, elsewhere, equal, option
from options.runs import Finetuned, ask, finetuned, student

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


@option("finetune", "--compare")
def _():
    page = new_path("page.html")
    check("verdict" in Finetuned(teacher=MODEL, compare=page).said)
    check("Can it replace its teacher?" in page.read_text())


@option("finetune", "--taught")
def _():
    # All of the vocabulary: as much as the teacher itself says, but for the rounding on disk.
    file = new_path()
    ask("teach", top=512, out=file)
    taught, imitated = finetuned(taught=file), finetuned(teacher=MODEL)
    check(abs(taught.said["epochs"][0]["loss"] - imitated.said["epochs"][0]["loss"]) < 1e-4)
    equal(taught.about["taught"]["top"], 512)
    fewer = new_path()
    ask("teach", out=fewer)
    check(finetuned(taught=fewer).said["epochs"][0]["loss"] < imitated.said["epochs"][0]["loss"])


@option("teach", "--top", "--out")
def _():
    few, many = new_path(), new_path()
    said = ask("teach", out=few), ask("teach", top=100, out=many)
    equal([one["top"] for one in said], [8, 100])
    equal([one["bytes"] for one in said], [path.stat().st_size for path in (few, many)])
    check(said[0]["named"] < said[1]["named"] < 1)


@option("finetune", "--train")
def _():
    start = model_tensors(student())
    for part, learns in (("features", lambda name: False), ("attention", lambda name: ".self_attn." in name)):
        tuned = finetuned(train=part)
        equal(tuned.about["train"], part)
        check(tuned.features != {name: start[name] for name in tuned.features})
        for name, (_, _, values) in tuned.weights.items():
            check((values != start[name][2]) == learns(name), name)


@option("finetune", "--lora")
def _():
    start = model_tensors(student())
    tuned = finetuned(lora=2)
    equal((tuned.about["train"], tuned.about["lora"]), ("attention", 2))
    equal(list(tuned.weights), list(finetuned().weights))  # a folder like any other
    for name, (_, _, values) in tuned.weights.items():
        check((values != start[name][2]) == (".self_attn." in name), name)
    check(not tuned.same(finetuned(train="attention")))


@option("finetune", "--moments")
def _():
    equal((finetuned().about["moments"], finetuned(moments="bf16").about["moments"]), ("float32", "bf16"))
    # From the second step on: the first is made before anything is rounded.
    check(not finetuned(moments="bf16", epochs=2).same(finetuned(epochs=2)))
    check(finetuned(moments="float32").same(finetuned()))


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
