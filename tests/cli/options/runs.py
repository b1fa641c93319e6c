"""The short runs that options are compared with, and what they leave."""

import copy
import json

import dofla
from dofla import MODEL, answer, model_tensors, new_path, run, text_file, write


def first_argument(command):
    if command in ("plan", "report"):
        return dof_file()
    if command == "reproduce":
        return suite()
    return student() if command == "finetune" else MODEL


def plain(command, **instead):
    """Arguments of a short run of a command, with some options replaced, or left out if None."""
    text = {"data": text_file(), "length": 32, "sequences": 10}
    options = {
        "inspect": {},
        "tokenize": {"text": "Once"},
        "dof": {**text, "samples": 24, "draws": 2},
        "sensitivity": {**text, "cost": 4, "steps": 2, "windows": 3, "held_out": 2},
        "plan": {"cost": 8},
        "evaluate": text,
        "compare": {"texts": text_file(60), "length": 32, "windows": 3},
        "quantize": {**text, "out": new_path()},
        "estimate": {},
        "generate": {"prompt": "The", "max_tokens": 8, "temperature": 1, "seed": 3},
        "distill": {**text, "cost": 4, "steps": 2, "batch": 2, "samples": 32, "held_out": 2,
                    "out": new_path()},
        "teach": {**text, "top": 8, "out": new_path()},
        # One step on 8 windows.
        "finetune": {**text, "held_out": 2, "epochs": 1, "batch": 8, "lr": 1e-3,
                     "out": new_path()},
        "report": {"out": new_path("page.html")},
        "reproduce": {"data": text_file(), "out": new_path()},
    }[command]
    arguments = [command, first_argument(command)]
    if command == "compare":
        arguments.append(student())
    for name, value in {**options, **instead}.items():
        if value is not None:
            arguments.append("--" + name.replace("_", "-"))
            arguments += [] if value is True else [value]
    return arguments


def ask(command, **instead):
    """What a run says; one that writes nothing is asked once."""
    arguments = plain(command, **instead)
    if "--out" in arguments:
        return answer(*arguments)
    return copy.deepcopy(made(tuple(map(str, arguments)), lambda: answer(*arguments)))


_made = {}


def made(name, make):
    """What `make` returns, made once."""
    if name not in _made:
        _made[name] = make()
    return _made[name]


def dof_file():
    path = dofla.SCRATCH / "dof.json"
    return made("dof", lambda: (run(*plain("dof", out=path)), path)[1])


def sensitivity_file():
    path = dofla.SCRATCH / "sensitivity.json"
    return made("sensitivity", lambda: (run(*plain("sensitivity", out=path)), path)[1])


def student():
    return distilled().out


def suite(**more):
    return write(f"suite-{len(_made)}.json", json.dumps({
        "teacher": str(MODEL), "length": 32, "held_out": 2, "costs": [4],
        "baselines": ["performer"], "steps": 1, "batch": 1,
        "dof": {"samples": 16, "sequences": 2}, **more}))


class Distilled:
    """A run of distill: what it says, its record in config.json, and its features."""

    def __init__(self, **instead):
        self.out = new_path("student")
        self.said = ask("distill", **{"out": self.out, **instead})
        config = json.loads((self.out / "config.json").read_text())
        self.about = config["linear_attention"]
        features = {name: (shape, values) for name, (_, shape, values)
                    in model_tensors(self.out).items() if name.startswith("linear_attention.")}
        self.z = {name: both for name, both in features.items() if name.endswith(".z")}
        self.alpha = {name: both for name, both in features.items() if name.endswith(".log_alpha")}
        self.others = {name: both for name, both in features.items()
                       if name not in self.z and name not in self.alpha}

    def same(self, other):
        return (self.z, self.alpha, self.others) == (other.z, other.alpha, other.others)


def distilled(**instead):
    return made(("distilled", str(instead)), lambda: Distilled(**instead))


class Finetuned:
    """A run of finetune: what it says, its record, its weights and its features."""

    def __init__(self, **instead):
        self.out = new_path("tuned")
        self.said = ask("finetune", **{"out": self.out, **instead})
        self.about = json.loads((self.out / "config.json").read_text())["training"]
        found = model_tensors(self.out)
        self.features = {n: t for n, t in found.items() if n.startswith("linear_attention.")}
        self.weights = {n: t for n, t in found.items() if n not in self.features}

    def same(self, other):
        return (self.weights, self.features) == (other.weights, other.features)


def finetuned(**instead):
    return made(("finetuned", str(instead)), lambda: Finetuned(**instead))
