#!/usr/bin/env python3
"""Fails on an include that goes against the layers of the project.

core <- ops <- model <- features <- stages <- pipeline <- reproduce <- cli <- python; checkpoint needs only core,
distributed core, ops and checkpoint, and features and what is above them may use it. Of the stages, each may include
the ones before it. CUDA headers stay in ops/cuda and core/device*, Boost's in serve/http_*, MPI's in
distributed/mpi.cc, NCCL's in distributed/nccl.cc.

usage: check_layers.py [ROOT]        the folder with dofla/, cli/ and python/, by default the repository
"""

import re
import sys
from pathlib import Path

STAGES = ["data", "dof", "plan", "linear", "distill", "train", "generate", "evaluate", "fidelity",
          "sensitivity", "report", "serve"]

# What each layer may include besides itself.
ALLOWED = {
    "core": set(),
    "ops": {"core"},
    "checkpoint": {"core"},
    "distributed": {"core", "ops", "checkpoint"},
    "model": {"core", "ops", "checkpoint"},
    "features": {"core", "distributed", "ops", "checkpoint", "model"},
}
for _position, _stage in enumerate(STAGES):
    ALLOWED[_stage] = {"features", *ALLOWED["features"], *STAGES[:_position]}
ALLOWED["pipeline"] = {"features", *ALLOWED["features"], *STAGES}
ALLOWED["reproduce"] = {*ALLOWED["pipeline"], "pipeline"}
ALLOWED["cli"] = {*ALLOWED["reproduce"], "reproduce"}
ALLOWED["python"] = {*ALLOWED["cli"], "cli"}

SOURCES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
CUDA_HEADER = re.compile(r"^(cuda|cublas|cusolver|curand|cub/|thrust/|nvrtc|nvtx|mma\.h)")
CUDA_FILE = re.compile(r"^dofla/(ops/cuda/|core/device)")
HTTP_FILE = re.compile(r"^dofla/serve/http_")
# Headers that a single file may include.
ONLY_FILE = {"mpi.h": "dofla/distributed/mpi.cc", "nccl.h": "dofla/distributed/nccl.cc"}


def layer_of(path):
    """The layer of a path such as dofla/ops/matmul.h, or None outside the project."""
    parts = path.split("/")
    if parts[0] in ("cli", "python"):
        return parts[0]
    if parts[0] != "dofla":
        return None
    return parts[1] if len(parts) > 2 else Path(parts[-1]).stem


def wrong_includes(root):
    """One line for every wrong include under root, in the order of the files."""
    errors = []
    files = [path for folder in ("dofla", "cli", "python") for path in (root / folder).rglob("*")]
    for path in sorted(file for file in files if file.suffix in SOURCES):
        name = path.relative_to(root).as_posix()
        source = layer_of(name)
        if source not in ALLOWED:
            errors.append(f"{name}: {source} is not a layer; tools/check_layers.py lists them")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            include = INCLUDE.match(line)
            if not include:
                continue
            header = include[1]
            target = layer_of(header)
            if target not in {None, source, *ALLOWED[source]}:
                errors.append(f"{name}:{number}: {source} must not include {target}: {header}")
            elif header.startswith(".") or (target is None and (path.parent / header).is_file()):
                errors.append(f"{name}:{number}: write the path from the root of the repository: {header}")
            elif CUDA_HEADER.match(header) and not CUDA_FILE.match(name):
                errors.append(f"{name}:{number}: CUDA stays in ops/cuda and core/device: {header}")
            elif header.startswith("boost/") and not HTTP_FILE.match(name):
                errors.append(f"{name}:{number}: Boost stays in serve/http_*: {header}")
            elif name != ONLY_FILE.get(header, name):
                errors.append(f"{name}:{number}: {header} stays in {ONLY_FILE[header]}")
    return errors


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    errors = wrong_includes(root)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
