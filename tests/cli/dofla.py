"""The dofla binary for tests in Python: small inputs, its answers, and the files that it writes.

The model is tests/models/stories260K: trained, with a tokenizer, and small enough for a run to take
a fraction of a second."""

import array
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/models/stories260K"
FIXTURES = Path(os.environ.get("DOFLA_FIXTURES", ROOT / "tests/fixtures"))
BINARY = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else ROOT / "build/release/dofla"

_scratch = tempfile.TemporaryDirectory()
SCRATCH = Path(_scratch.name)
_count = 0


def new_path(name="out"):
    """A place in the scratch folder where nothing is yet."""
    global _count
    _count += 1
    return SCRATCH / f"{_count}-{name}"


def write(name, contents):
    path = SCRATCH / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(contents)
    return path


def run(*arguments, code=0):
    """Standard output and standard error of a command that must exit with `code`."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    assert done.returncode == code, f"exit {done.returncode}: {' '.join(map(str, arguments))}\n" \
                                    f"{done.stderr}"
    return done.stdout, done.stderr


def answer(*arguments):
    """The JSON object of a command."""
    return json.loads(run(*arguments, "--json")[0])


def tensors(path):
    """name -> (dtype, shape, values) of a safetensors file; values of F32 and I64 are numbers."""
    data = Path(path).read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = data[8 + length + begin:8 + length + end]
        if entry["dtype"] in ("F32", "I64"):
            values = array.array("f" if entry["dtype"] == "F32" else "q", values)
        out[name] = (entry["dtype"], entry["shape"], values)
    return out


def model_tensors(folder):
    return tensors(Path(folder) / "model.safetensors")


def sentences(count, shift=0):
    return "".join(f"Lily saw {(i * i + shift) % 17} red birds and {i % 5} cats in the park. "
                   for i in range(count))


def text_file(count=20, shift=0):
    return write(f"text-{count}-{shift}.txt", sentences(count, shift))


def task_folder():
    """Questions of piqa, to train on and to be judged by; wsc and arc_easy to be judged by."""
    piqa = [{"goal": f"find {i} cats", "sol1": f"look for {i} cats", "sol2": f"run {i} times"}
            for i in range(7)]
    lines = [json.dumps(question) + "\n" for question in piqa]
    write("tasks/piqa/train.jsonl", "".join(lines))
    write("tasks/piqa/train-labels.lst", "".join(f"{int(i % 3 == 0)}\n" for i in range(7)))
    write("tasks/piqa/valid.jsonl", "".join(lines[:5]))
    write("tasks/piqa/valid-labels.lst", "0\n1\n0\n1\n1\n")
    wsc = [{"text": "Ann thanked Bea , because she won .", "idx": i, "label": i == 0,
            "target": {"span1_index": 2 * i, "span1_text": ["Ann", "Bea"][i], "span2_index": 5,
                       "span2_text": "she"}} for i in range(2)]
    for split in ("val", "train"):
        write(f"tasks/wsc/{split}.jsonl", "".join(json.dumps(one) + "\n" for one in wsc))
    arc = [{"question": {"stem": f"What is {word}?", "choices": [
        {"text": text, "label": label} for text, label in zip(("water", "sand", "fire"), "ABC")]},
        "answerKey": key} for word, key in (("wet", "A"), ("hot", "C"), ("dry", "B"))]
    write("tasks/arc_easy/ARC-Easy-Test.jsonl", "".join(json.dumps(one) + "\n" for one in arc))
    return SCRATCH / "tasks"
