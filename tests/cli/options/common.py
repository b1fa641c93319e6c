"""What many commands have: help, JSON, a device, and the text to read."""

import json
import re

from dofla import answer, new_path, run, sentences, text_file, write
from options.checks import check, equal, option
from options.runs import Distilled, Finetuned, ask, plain

COMMANDS = ["", "inspect", "tokenize", "dof", "sensitivity", "plan", "evaluate", "compare",
            "quantize", "estimate", "generate", "distill", "teach", "finetune", "report", "reproduce", "chat", "serve"]


@option("", "--help")
def _():
    check("reproduce" in run("--help")[0])


@option("", "--version")
def _():
    check(re.fullmatch(r"dofla \d+\.\d+\.\d+\n", run("--version")[0]))


@option("", "--threads")
def _():
    # The number of threads changes no result, only the time.
    equal(answer(*plain("generate"), "--threads", 1)["ids"], ask("generate")["ids"])
    run(*plain("generate"), "--threads", 0, code=2)


def register_common(command):
    def helps():
        check(f"dofla {command}" in run(command, "--help")[0])

    def prints_json():
        check(isinstance(ask(command), dict))
        try:
            json.loads(run(*plain(command))[0])
        except ValueError:
            return
        check(False, "prints JSON without it, too")

    def device():
        # What a GPU computes is compared with the CPU in the tests of the folders named cuda.
        run(*plain(command), "--device", "cpu")
        run(*plain(command), "--device", "abacus", code=2)

    option(command, "--help")(helps)
    if command not in ("chat", "serve"):
        option(command, "--json")(prints_json)
    if command in ("dof", "sensitivity", "evaluate", "compare", "quantize", "generate", "distill", "teach",
                   "finetune", "reproduce"):
        option(command, "--device")(device)


for name in COMMANDS[1:]:
    register_common(name)


def keeps_tokens(command, **more):
    """The second of two equal runs finds the tokens of the first, and says the same."""
    folder = new_path("tokens")
    # A run of few tokens makes them each time: `more` asks for as many as there are.
    def again():
        out = {"out": new_path()} if command in ("distill", "finetune", "reproduce") else {}
        said, remarks = run(*plain(command, token_cache=folder, **more, **out), "--json")
        untimed = json.loads(said, object_hook=lambda x: {k: v for k, v in x.items() if "second" not in k})
        return untimed, remarks

    (first, kept), (second, found) = again(), again()
    check(first == second, "says another thing")
    check("kept for the next run" in kept and "made by an earlier run" in found, kept + found)
    equal([path.suffix for path in folder.iterdir()], [".tokens"])


def register_text(command, windows):
    """--data, --ids and so on; windows(answer) is the number of windows and their length."""
    def data():
        check(differs(ask(command, data=text_file(20, 5)), ask(command)))

    def differs(a, b):
        return {k: v for k, v in a.items() if "second" not in k} != \
               {k: v for k, v in b.items() if "second" not in k}

    def ids():
        sequences = [[1 + (7 * t * (b + 1)) % 500 for t in range(24)] for b in range(5)]
        file = write("ids.json", json.dumps(sequences))
        found = windows(dict(data=None, length=None, sequences=None, ids=file))
        equal(found, (5, 24))

    def length():
        equal(windows(dict(length=16))[1], 16)

    def other_name():
        equal(windows({"length": None, "sequence_length": 16}), windows(dict(length=16)))

    def sequences():
        equal(windows(dict(sequences=5))[0], 5)

    def skip_bad_lines():
        line = json.dumps({"text": sentences(20)}) + "\n"
        good = write("good.jsonl", line)
        bad = write("bad.jsonl", "no document\n" + line)
        run(*plain(command, data=bad), code=1)
        equal(windows(dict(data=bad, skip_bad_lines=True)), windows(dict(data=good)))
        check("1 bad line" in run(*plain(command, data=bad, skip_bad_lines=True))[1])

    option(command, "--skip-bad-lines")(skip_bad_lines)
    option(command, "--token-cache")(lambda: keeps_tokens(command, sequences=10**6))
    option(command, "--data")(data)
    option(command, "--ids")(ids)
    option(command, "--length")(length)
    option(command, "--sequence-length")(other_name)
    option(command, "--sequences")(sequences)


def dof_windows(instead):
    said = ask("dof", **instead)
    return said["sequences"], said["length"]


def sensitivity_windows(instead):
    said = ask("sensitivity", **{**instead, "held_out": 1, "windows": None})
    # As many as there are to train on, up to 8, are measured on.
    return said["windows"] + 1, said["length"]


def evaluate_windows(instead):
    each = ask("evaluate", **instead)["sequences"]
    return len(each), each[0]["tokens"] + 1


def quantize_windows(instead):
    lost = ask("quantize", **instead)["fidelity"]
    return lost["windows"], lost["tokens"] // lost["windows"] + 1


def distill_windows(instead):
    about = Distilled(**instead).about
    return about["train_windows"] + 2, about["sequence_length"]


def teach_windows(instead):
    said = ask("teach", **instead)
    return said["windows"], said["length"]


def finetune_windows(instead):
    tuned = Finetuned(**instead)
    return (tuned.said["train_windows"] + tuned.said["held_out_windows"],
            tuned.about["sequence_length"])


register_text("dof", dof_windows)
register_text("sensitivity", sensitivity_windows)
register_text("evaluate", evaluate_windows)
register_text("quantize", quantize_windows)
register_text("distill", distill_windows)
register_text("teach", teach_windows)
register_text("finetune", finetune_windows)
