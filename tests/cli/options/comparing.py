"""The options of compare and of estimate."""

import json

from dofla import new_path, run, task_folder, text_file, write
from options.checks import check, equal, option
from options.common import keeps_tokens
from options.runs import ask, plain


def compared(**instead):
    return ask("compare", **instead)["students"][0]


@option("compare", "--texts")
def _():
    equal([text["name"] for text in compared(texts=f"other={text_file(60, 5)}")["texts"]],
          ["other"])


@option("compare", "--in-domain")
def _():
    name = text_file(60).name.split(".")[0]
    equal([compared()["texts"][0]["in_domain"], compared(in_domain=name)["texts"][0]["in_domain"]],
          [False, True])


@option("compare", "--length")
def _():
    equal(compared(length=16)["texts"][0]["tokens"], 3 * 15)


@option("compare", "--windows")
def _():
    equal([compared(windows=n)["texts"][0]["windows"] for n in (2, 5)], [2, 5])


@option("compare", "--token-cache")
def _():
    keeps_tokens("compare", windows=10**6)


@option("compare", "--suite")
def _():
    quick, full = (compared(texts=text_file(400), length=16, windows=None, suite=suite)
                   for suite in ("quick", "full"))
    equal((quick["texts"][0]["windows"], full["texts"][0]["windows"]), (16, 100))


@option("compare", "--last-words")
def _():
    lines = [{"context": f"Lily saw {i} red", "continuation": "birds"} for i in range(4)]
    file = write("words.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    equal(compared(last_words=file)["abilities"]["last_words"]["words"], 4)
    check("last_words" not in compared()["abilities"])


@option("compare", "--tasks")
def _():
    found = {task["task"]: task["questions"]
             for task in compared(tasks=task_folder())["abilities"]["tasks"]}
    equal(found, {"piqa": 5, "arc_easy": 3, "wsc": 2})


@option("compare", "--out")
def _():
    page = new_path("page.html")
    compared(out=page)
    check("Can it replace its teacher?" in page.read_text())


@option("compare", "--markdown")
def _():
    page = new_path("page.md")
    compared(markdown=page)
    check("## Verdict" in page.read_text())

# estimate

def first_stage(**instead):
    return ask("estimate", **instead)["stages"][0]


@option("estimate", "--tokens")
def _():
    stage = first_stage(tokens=1000)
    check(abs(stage["seconds"] * stage["tokens_per_second"] - 1000) < 1e-6)


@option("estimate", "--length", "--cost")
def _():
    # Longer windows have more pairs, more features more work for each.
    check(first_stage(length=4096)["tokens_per_second"] < first_stage()["tokens_per_second"])
    check(first_stage(cost=256)["tokens_per_second"] < first_stage()["tokens_per_second"])


@option("estimate", "--batch")
def _():
    check(first_stage(batch=64)["bytes"] > first_stage()["bytes"])


@option("estimate", "--gpus")
def _():
    two, one = first_stage(gpus=2, batch=16), first_stage()
    check(abs(two["tokens_per_second"] / one["tokens_per_second"] - 2) < 1e-9)
    run(*plain("estimate", gpus=9), code=2)  # a batch of 8


@option("estimate", "--tflops")
def _():
    check(abs(first_stage(tflops=7.79)["seconds"] / first_stage()["seconds"] - 100) < 1e-6)


@option("estimate", "--device-memory")
def _():
    check(first_stage()["fits"] and not first_stage(device_memory="1kB")["fits"])
    check("does not fit" in run(*plain("estimate", device_memory="1kB"))[0])


@option("estimate", "--moments")
def _():
    # Of the finetune that trains everything: half of the 8 bytes a parameter.
    whole, small = ask("estimate"), ask("estimate", moments="bf16")
    saved = whole["stages"][2]["bytes"] - small["stages"][2]["bytes"]
    check(abs(saved - 4 * whole["weights"]) < 1)
