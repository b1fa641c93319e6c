"""The options of the commands that measure and plan: dof, sensitivity, plan."""

import json

from dofla import answer, new_path, run
from options.checks import check, equal, option
from options.runs import ask, dof_file, sensitivity_file


# dof

def heads_of(table):
    return [head["dof"] for layer in table["layers"] for head in layer["heads"]]


@option("dof", "--samples")
def _():
    fewer = ask("dof", samples=12)
    equal(fewer["samples"], 12)
    check(max(heads_of(fewer)) <= 12)


@option("dof", "--draws")
def _():
    equal(ask("dof", draws=3)["draws"], 3)
    check(all(h["spread"] == 0 for row in ask("dof", draws=1)["layers"] for h in row["heads"]))
    check(any(h["spread"] > 0 for row in ask("dof")["layers"] for h in row["heads"]))


@option("dof", "--lambda")
def _():
    larger = ask("dof", **{"lambda": "2^-2"})
    equal(larger["lambda"], 0.25)
    check(all(a < b for a, b in zip(heads_of(larger), heads_of(ask("dof")), strict=True)))


@option("dof", "--coordinates")
def _():
    equal(ask("dof")["coordinates"], "balanced")
    for name in ("raw", "centred"):
        other = ask("dof", coordinates=name)
        equal(other["coordinates"], name)
        check(heads_of(other) != heads_of(ask("dof")))


@option("dof", "--features")
def _():
    # The model has two query heads to every key head.
    equal((ask("dof")["feature_heads"], ask("dof", features="prf")["feature_heads"]), (4, 8))
    equal(len(heads_of(ask("dof", features="prf"))), 2 * len(heads_of(ask("dof"))))


@option("dof", "--gram")
def _():
    # Divided by its largest entry and not by its trace, the matrix is larger, and λ counts less.
    other = ask("dof", gram="max")
    equal(other["gram"], "max")
    pairs = list(zip(heads_of(other), heads_of(ask("dof")), strict=True))
    check(all(a >= b for a, b in pairs) and any(a > 1.01 * b for a, b in pairs))


@option("dof", "--seed")
def _():
    equal(ask("dof", seed=1)["seed"], 1)
    check(heads_of(ask("dof", seed=1)) != heads_of(ask("dof")))
    equal(heads_of(ask("dof", seed=0)), heads_of(ask("dof")))


@option("dof", "--out")
def _():
    equal(len(json.loads(dof_file().read_text())["layers"]), len(ask("dof")["layers"]))


# sensitivity

def added(table):
    return [layer["added"] for layer in table["layers"]]


@option("sensitivity", "--coordinates")
def _():
    raw = ask("sensitivity", coordinates="raw")
    equal((raw["coordinates"], ask("sensitivity")["coordinates"]), ("raw", "balanced"))
    check(raw["layers"] != ask("sensitivity")["layers"])


@option("sensitivity", "--features")
def _():
    equal(ask("sensitivity", features="prf")["feature_heads"], 8)
    equal(ask("sensitivity")["feature_heads"], 4)


@option("sensitivity", "--cost")
def _():
    equal(ask("sensitivity", cost=32)["ladder"], [2, 8, 32, 128])
    equal(ask("sensitivity", cost=None)["ladder"], [1, 2, 8, 32])  # around the head size


@option("sensitivity", "--ladder")
def _():
    equal(ask("sensitivity", cost=None, ladder="2,5")["ladder"], [2, 5])


@option("sensitivity", "--steps", "--batch", "--windows")
def _():
    for instead in (dict(steps=3), dict(batch=3), dict(windows=4)):
        other = ask("sensitivity", **instead)
        for name, value in instead.items():
            equal(other[name], value)
        check(added(other) != added(ask("sensitivity")))


@option("sensitivity", "--seed")
def _():
    equal(ask("sensitivity", seed=1)["seed"], 1)
    check(added(ask("sensitivity", seed=1)) != added(ask("sensitivity")))
    equal(added(ask("sensitivity", seed=0)), added(ask("sensitivity")))


@option("sensitivity", "--held-out")
def _():
    equal(ask("sensitivity", held_out=7, windows=None)["windows"], 3)


@option("sensitivity", "--out")
def _():
    equal(json.loads(sensitivity_file().read_text()), ask("sensitivity"))


# plan

@option("plan", "--least")
def _():
    for arguments in ([dof_file()], [dof_file(), "--strategy", "dof-head"], [sensitivity_file()]):
        free = answer("plan", *arguments, "--cost", 8)
        floor = answer("plan", *arguments, "--cost", 8, "--least", 7)
        equal(floor["least"], 7)
        check(min(floor["dims"]) >= 7 and floor["dims"] != free["dims"])
    run("plan", dof_file(), "--cost", 8, "--least", 9, code=1)


@option("plan", "--by")
def _():
    head = answer("plan", sensitivity_file(), "--cost", 8, "--by", "head")
    layer = answer("plan", sensitivity_file(), "--cost", 8, "--by", "layer")
    check("heads" in head and "heads" not in layer)
    equal(answer("plan", sensitivity_file(), "--cost", 8), head)


@option("plan", "--strategy")
def _():
    equal(set(ask("plan", strategy="fix")["dims"]), {8})
    check(len(set(ask("plan")["dims"])) > 1)
    check("heads" in ask("plan", strategy="dof-head"))
    clipped = ask("plan", strategy="dof-clip", cost=64)["dims"]
    equal(max(clipped), 8)  # the head size of the model


@option("plan", "--cost")
def _():
    equal(ask("plan", cost=16)["cost"], 16)
    check(abs(ask("plan", cost=16)["mean"] - 16) <= 0.5)
    equal(ask("plan", cost=None)["cost"], 8)


@option("plan", "--lambda")
def _():
    other = ask("plan", **{"lambda": 0.5, "cost": 64})
    equal(other["lambda"], 0.5)
    check(other["dims"] != ask("plan", cost=64)["dims"])


@option("plan", "--power")
def _():
    even = ask("plan", strategy="dof-head", power=0)
    equal(even["power"], 0)
    equal({m for row in even["heads"] for m in row}, {8})
    check(ask("plan", strategy="dof-head", power=2)["heads"] !=
          ask("plan", strategy="dof-head")["heads"])


@option("plan", "--bound")
def _():
    check("bound" in ask("plan", bound=True) and "bound" not in ask("plan"))


@option("dof", "--errors")
def _():
    file = new_path("errors.json")
    said = ask("dof", errors=True, out=file)
    equal(said["ladder"], [8, 32, 128, 512])
    check("ladder" not in ask("dof"))
    check(all(e > 0 for layer in said["layers"] for head in layer["heads"]
              for e in head["errors"]["gaussian"] + head["errors"]["leverage"]))
    shown = answer("plan", file, "--bound")["bounds"][0]
    equal(shown["errors"], said["layers"][0]["heads"][shown["head"]]["errors"])


@option("plan", "--delta", "--t")
def _():
    base = ask("plan", bound=True)["bound"]
    for stricter in (dict(delta=0.01), dict(t=0.5)):
        check(all(a > b for a, b in zip(ask("plan", bound=True, **stricter)["bound"], base)))


@option("plan", "--out")
def _():
    file = new_path("plan.json")
    said = ask("plan", out=file)
    equal(json.loads(file.read_text()), said)


# plans in bytes

SMALL = dict(sinks=1, recent=2, block=2)  # a cache of few keys, for windows of 32 tokens


def in_bytes(**instead):
    return ask("sensitivity", **{"cost": None, "memory": "20kB", **SMALL, **instead})


@option("sensitivity", "--memory")
def _():
    small, large = in_bytes(), in_bytes(memory="24kB")
    check(small["exact_keys"]["keys"] < large["exact_keys"]["keys"])
    check(len(small["layers"][0]["added_without_features"]) == len(small["key_ladder"]))
    check("key_ladder" not in ask("sensitivity"))


@option("sensitivity", "--keys", "--window")
def _():
    keys = ask("sensitivity", keys=12, **SMALL)["exact_keys"]
    equal((keys["keys"], keys["policy"]), (12, "attended"))
    window = ask("sensitivity", window=12, **SMALL)["exact_keys"]
    equal((window["keys"], window["policy"]), (12, "recent"))


@option("sensitivity", "--sinks", "--recent", "--block")
def _():
    for name, value in (("sinks", 2), ("recent", 3), ("block", 4)):
        other = in_bytes(**{name: value})
        equal(other["exact_keys"][name], value)
        check(other["layers"] != in_bytes()["layers"])


@option("sensitivity", "--policy")
def _():
    recent = in_bytes(policy="recent")
    equal((recent["exact_keys"]["policy"], in_bytes()["exact_keys"]["policy"]),
          ("recent", "attended"))
    check(recent["layers"] != in_bytes()["layers"])


@option("sensitivity", "--recall-windows")
def _():
    recall = [in_bytes(recall_windows=count)["recall"] for count in (1, 2)]
    equal([r["windows"] for r in recall], [1, 2])
    check(recall[0]["lost"] != recall[1]["lost"])
    equal(recall[1], in_bytes()["recall"])
    check("recall" not in in_bytes(recall_windows=0))
    run("sensitivity", "--recall-windows", "1", code=2)


@option("plan", "--recall-share")
def _():
    file = new_path("recall.json")
    in_bytes(out=file)
    none, all = (answer("plan", file, "--memory", 16_000, "--recall-share", share) for share in (0, 1))
    check(sum(all["predicted_recall"]) < sum(none["predicted_recall"]))
    check(sum(all["predicted"]) > sum(none["predicted"]))
    run("plan", file, "--memory", "16kB", "--recall-share", "1.5", code=2)
    run("plan", file, "--recall-share", "0.5", code=2)
    in_bytes(out=file, recall_windows=0)
    run("plan", file, "--memory", "16kB", "--recall-share", "0.5", code=1)


@option("plan", "--memory")
def _():
    file = new_path("hybrid.json")
    in_bytes(out=file)
    # What has no gain that was measured is not bought, so that bytes may be left.
    small, large = (answer("plan", file, "--memory", memory)["state_bytes"]
                    for memory in (8_000, 16_000))
    check(4_000 < small <= 8_000 < large <= 16_000)
    run("plan", file, "--memory", "1kB", code=1)
    run("plan", sensitivity_file(), "--memory", "40kB", code=1)
