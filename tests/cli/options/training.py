"""The options of distill."""

from dofla import MODEL, model_tensors, new_path, run
from options.checks import check, elsewhere, equal, option
from options.runs import Distilled, ask, distilled, plain


@option("distill", "--out")
def _():
    check((distilled().out / "report.html").exists())


@option("distill", "--compare")
def _():
    page = new_path("page.html")
    said = Distilled(compare=page).said
    equal(said["verdict"]["findings"][0]["about"], "held out")
    check("Can it replace its teacher?" in page.read_text() and "verdict" not in distilled().said)


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


SMALL = dict(sinks=1, recent=2, block=2)  # a cache of few keys, for windows of 32 tokens


def with_keys(**instead):
    return distilled(**{"samples": None, "strategy": "fix", "keys": 12, **SMALL, **instead})


@option("distill", "--memory")
def _():
    for memory in (40_000, 60_000):
        made = Distilled(cost=None, samples=None, memory=memory, **SMALL)
        check(0.9 * memory < made.said["state_bytes"] <= memory)
        equal((made.about["memory"], "cost" in made.about), (memory, False))
    run(*plain("distill", cost=None, samples=None, memory="1kB", **SMALL), code=1)


@option("distill", "--recall-share")
def _():
    none, all = (Distilled(cost=None, samples=None, memory=16_000, recall_share=share, **SMALL)
                 for share in (0, 1))
    equal([made.about["recall_share"] for made in (none, all)], [0, 1])
    check(none.about["exact_keys"] != all.about["exact_keys"])
    run(*plain("distill", recall_share=0.5), code=2)


@option("distill", "--keys", "--window")
def _():
    equal(with_keys().said["keys"], [12] * 5)
    equal({layer["policy"] for layer in with_keys().about["exact_keys"]}, {"attended"})
    window = with_keys(keys=None, window=12)
    equal({layer["policy"] for layer in window.about["exact_keys"]}, {"recent"})
    check(window.said["student_loss"] != with_keys().said["student_loss"])


@option("distill", "--sinks", "--recent", "--block", "--policy")
def _():
    for name, value in (("sinks", 2), ("recent", 3), ("block", 4), ("policy", "recent")):
        other = with_keys(**{name: value})
        equal({layer[name] for layer in other.about["exact_keys"]}, {value})
        check(other.said["student_loss"] != with_keys().said["student_loss"])


@option("distill", "--keep")
def _():
    equal([m == 0 for m in distilled(keep="2,5").said["dims"]], [False, True, False, False, True])


@option("distill", "--keep-count")
def _():
    for strategy in ("sensitivity", "dof"):
        kept = Distilled(strategy=strategy, samples=None, keep_count=2)
        equal(kept.said["dims"].count(0), 2)
        equal(kept.about["keep_count"], 2)


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
    names = ["softmax", "l2", "attention-mse", "output", "direct", "kl"]
    trained = [distilled(loss=name) for name in names]
    equal([one.about["loss"] for one in trained], names)
    # A divergence cannot fall below 0, the loss of the next token not far below the teacher's.
    has_floor = ["the teacher&#39;s loss" in (one.out / "report.html").read_text() for one in trained]
    equal(has_floor, [False, False, False, False, True, False])
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


@option("distill", "--lr-norm")
def _():
    still, start = distilled(lr_norm=0), distilled(steps=0)
    weights = [name for name in start.others if name.endswith(".norm_weight")]
    check(weights and all(still.others[name] == start.others[name] for name in weights))
    check(any(distilled().others[name] != start.others[name] for name in weights))


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
