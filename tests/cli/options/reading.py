"""The options of the commands that read and show."""

import json
import re

import dofla
from dofla import MODEL, answer, new_path, run, task_folder, text_file, write
from options.checks import check, equal, option
from options.common import keeps_tokens
from options.runs import ask, plain, suite


@option("tokenize", "--text")
def _():
    check(ask("tokenize", text="Twice")["ids"] != ask("tokenize")["ids"])


@option("tokenize", "--file")
def _():
    equal(ask("tokenize", text=None, file=write("once.txt", "Once"))["ids"],
          ask("tokenize")["ids"])


# evaluate and generate

@option("evaluate", "--teacher")
def _():
    own = ask("evaluate", teacher=MODEL)
    equal((own["same_top"], own["attention_error"]), (1, [0] * 5))
    equal(own["loss"], own["teacher_loss"])


def tasks(**more):
    arguments = ["evaluate", MODEL, "--task-data", task_folder()]
    for name, value in more.items():
        arguments += ["--" + name, value]
    return answer(*arguments)["tasks"][0]


@option("evaluate", "--task")
def _():
    equal([tasks(task=name)["task"] for name in ("piqa", "wsc")], ["piqa", "wsc"])


@option("evaluate", "--task-data")
def _():
    equal(tasks(task="piqa")["questions"], 5)
    run("evaluate", MODEL, "--task", "piqa", "--task-data", dofla.SCRATCH / "none", code=1)


@option("evaluate", "--split")
def _():
    train = tasks(task="piqa", split="train")
    equal((train["split"], train["questions"]), ("train", 7))


@option("evaluate", "--limit")
def _():
    equal(tasks(task="piqa", limit=3)["questions"], 3)


@option("evaluate", "--letters")
def _():
    generated, likely = (tasks(task="arc_easy", letters=by) for by in ("generated", "likelihood"))
    equal((generated["asked"], likely["asked"], likely["unanswered"]), (9, 9, 0))
    check(generated != likely)


@option("evaluate", "--last-words")
def _():
    lines = [json.dumps({"context": f"Once {n} a", "continuation": "time"}) for n in ("upon", "at")]
    said = answer("evaluate", MODEL, "--last-words", write("words.jsonl", "\n".join(lines)))
    equal(said["words"], 2)


def recall(**more):
    arguments = ["evaluate", MODEL, "--recall", "--data", text_file(60, 5)]
    for name, value in {"distances": "64", "questions": 4, **more}.items():
        arguments += ["--" + name, value]
    return answer(*arguments)


@option("evaluate", "--recall")
def _():
    equal(set(recall()), {"recall", "needle", "induction"})


@option("evaluate", "--depths")
def _():
    equal([row["depth"] for row in recall(depths="0.75,0.2")["needle"]], [0.2, 0.75])


@option("evaluate", "--distances")
def _():
    equal([row["distance"] for row in recall(distances="40,64")["recall"]], [40, 64])


@option("evaluate", "--questions")
def _():
    equal(recall(questions=2)["recall"][0]["questions"], 2)


@option("evaluate", "--seed")
def _():
    figures = [recall(seed=seed)["induction"][0]["accuracy"] for seed in range(4)]
    equal(recall(seed=2)["induction"][0]["accuracy"], figures[2])
    check(len(set(figures)) > 1)


def cut(**more):
    """The loss of the model with its attention cut to a cache."""
    return ask("evaluate", **more)["loss"]


@option("evaluate", "--keys")
def _():
    check(abs(cut(keys=500) - cut()) < 1e-4)
    check(cut(keys=24) > cut())
    run(*plain("evaluate", keys=5), code=2)


@option("evaluate", "--window")
def _():
    equal(cut(window=24), cut(keys=24, policy="recent"))


@option("evaluate", "--policy")
def _():
    equal(cut(keys=24), cut(keys=24, policy="attended"))


@option("evaluate", "--sinks")
def _():
    check(cut(window=24, sinks=0) != cut(window=24))


@option("evaluate", "--recent")
def _():
    equal(cut(keys=24), cut(keys=24, recent=12))
    run(*plain("evaluate", keys=24, recent=20), code=2)


@option("evaluate", "--block")
def _():
    check(cut(window=24, block=1) != cut(window=24))


@option("generate", "--prompt")
def _():
    check(ask("generate", prompt="The dog")["ids"] != ask("generate")["ids"])


@option("generate", "--ids")
def _():
    ids = answer("tokenize", MODEL, "--text", "The")["ids"]
    file = write("prompt.json", json.dumps([ids]))
    equal(ask("generate", prompt=None, ids=file)["ids"], ask("generate")["ids"])


@option("generate", "--max-tokens")
def _():
    equal(ask("generate", max_tokens=5)["ids"], ask("generate")["ids"][:5])


@option("generate", "--temperature", "--top-k", "--top-p")
def _():
    greedy = ask("generate", temperature=0)["ids"]
    check(greedy != ask("generate")["ids"])
    equal(ask("generate", top_k=1)["ids"], greedy)
    equal(ask("generate", top_p=1e-9)["ids"], greedy)


@option("generate", "--seed")
def _():
    check(ask("generate", seed=4)["ids"] != ask("generate")["ids"])


@option("generate", "--ignore-end")
def _():
    # A model whose end-of-text token is one that it is about to generate.
    ids = ask("generate")["ids"]
    end = next(i for i, token in enumerate(ids) if i > 0 and token not in ids[:i])
    model = new_path("ending")
    model.mkdir()
    for file in MODEL.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "eos_token_id": ids[end]}))
    arguments = ["generate", model, *plain("generate")[2:]]
    equal(answer(*arguments)["ids"], ids[:end + 1])
    equal(answer(*arguments, "--ignore-end")["ids"], ids)


# report and reproduce

@option("report", "--out")
def _():
    out = new_path("page.html")
    ask("report", out=out)
    check("<title>" in out.read_text())


@option("report", "--lambda")
def _():
    pages = []
    for value in (None, "2^-2"):
        out = new_path("page.html")
        ask("report", out=out, **{"lambda": value})
        pages.append(out.read_text())
    check("<dt>λ</dt><dd>2⁻⁴</dd>" in pages[0] and "<dt>λ</dt><dd>2⁻²</dd>" in pages[1])
    largest = [re.search("<dt>Largest head</dt><dd>([0-9.]+)", page)[1] for page in pages]
    check(float(largest[0]) > float(largest[1]))


@option("reproduce", "--out")
def _():
    out = new_path()
    ask("reproduce", out=out)
    check((out / "tables.md").exists() and (out / "runs").is_dir())


@option("reproduce", "--teacher")
def _():
    other = new_path("another")
    other.mkdir()
    for file in MODEL.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    check(ask("reproduce", teacher=other)["teacher"].startswith(other.name))


@option("reproduce", "--data")
def _():
    out = new_path()
    ask("reproduce", out=out, data=text_file(20, 5))
    check("text-20-5.txt;" in (out / "tables.md").read_text())


@option("reproduce", "--token-cache")
def _():
    keeps_tokens("reproduce")


@option("reproduce", "--task-data")
def _():
    asking = suite(tasks={"names": ["piqa"], "finetune": False})
    for folder, there in ((None, False), (task_folder(), True)):
        out = new_path()
        arguments = ["reproduce", asking, "--data", text_file(), "--out", out]
        answer(*arguments, *(["--task-data", folder] if folder else []))
        equal("Accuracy at cost 4" in (out / "tables.md").read_text(), there)


@option("reproduce", "--only")
def _():
    equal(ask("reproduce", only="performer")["ran"], 1)
    equal(ask("reproduce")["ran"], 2)  # and the degrees of freedom


# quantize

@option("quantize", "--out")
def _():
    out = new_path()
    said = ask("quantize", out=out)
    inspected = answer("inspect", out)
    equal((inspected["dtype"], inspected["bytes"]), ("I8", said["bytes"]))
    equal(answer("inspect", MODEL)["bytes"], said["bytes_before"])
    run(*plain("quantize", out=out), code=1)
