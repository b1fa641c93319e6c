"""Students that write_students made, and what dofla computed for them. Needs torch alone."""

import json
import struct
from pathlib import Path

import torch

TYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64}


def read_safetensors(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=TYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


class Student:
    def __init__(self, folder):
        self.folder, self.name = Path(folder), Path(folder).name
        self.config = json.loads((self.folder / "config.json").read_text())
        self.tensors = read_safetensors(self.folder / "model.safetensors")
        self.expected = read_safetensors(self.folder / "expected.safetensors")

    def tolerance(self, x, depth=1):
        """Of two computations of x in float32: rounding errors of sums add up like a random walk, and
        `depth` times the sums of all layers feed into each other."""
        teacher = self.config["teacher"]
        widths = [teacher.get(name) or 0 for name in ("n_embd", "hidden_size", "n_inner", "intermediate_size")]
        layers = teacher.get("n_layer") or teacher.get("num_hidden_layers")
        length = max(*widths, 4 * (teacher.get("n_embd") or 0))
        eps = torch.finfo(torch.float32).eps
        return 4 * eps * length**0.5 * (5 * layers + 1) * depth * float(x.abs().max())

    def require_near(self, found, expected, what, depth=1):
        if found.shape != expected.shape:
            raise AssertionError(f"{self.name}: {what}: {tuple(found.shape)} instead of {tuple(expected.shape)}")
        off = float((found.detach().cpu().double() - expected.double()).abs().max())
        allowed = self.tolerance(expected, depth)
        if not off <= allowed:  # NaN never is
            raise AssertionError(f"{self.name}: {what}: off by {off:.3g}, allowed {allowed:.3g}")
        return off / allowed

    def require_gradients(self, parameters):
        """`parameters`: name and parameter. Every gradient that dofla has computed is there, and is its own."""
        found, worst = dict(parameters), 0.0
        for name, expected in self.expected.items():
            if name.startswith("gradient."):
                gradient = found[name[len("gradient.") :]].grad
                # Backward and forward: twice the depth.
                worst = max(worst, self.require_near(gradient, expected, name, depth=2))
        return worst


def all_students(folder):
    students = [Student(path.parent) for path in sorted(Path(folder).glob("*/expected.safetensors"))]
    if not students:
        raise SystemExit(f"{folder}: no students; make them with write_students")
    return students
