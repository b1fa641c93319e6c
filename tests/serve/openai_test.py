"""The official `openai` client of the npm registry against dofla serve. Usage: openai_test.py DOFLA

Exits with 77, skipped, where there is no node, no npm, or no registry to be reached."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from server import MODEL, Server

CLIENT = Path(__file__).resolve().parent / "openai"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def main():
    binary = sys.argv[1]
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            skip(f"no {program} in PATH")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json", "client_test.mjs"):
            shutil.copy(CLIENT / name, folder)
        try:
            installed = subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts"],
                                       cwd=folder, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            skip("the npm registry does not answer")
        if installed.returncode != 0:
            skip("npm ci: " + installed.stderr.strip().replace("\n", " ")[:300])
        with Server(binary, MODEL, "--alias", "stories", "--chat-template", "zephyr",
                    environment={"DOFLA_API_KEY": "a key"}) as server:
            sys.exit(subprocess.run(["node", "client_test.mjs", server.url, "a key"], cwd=folder,
                                    timeout=120).returncode)


if __name__ == "__main__":
    main()
