#!/usr/bin/env python3
"""The include-layer check accepts what the design allows and names what it does not."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check_layers.py"


class CheckLayers(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            run = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
            return run.returncode, run.stderr

    def expect_allowed(self, name, header):
        self.assertEqual(self.check({name: f'#include "{header}"\n'}), (0, ""), (name, header))

    def expect_wrong(self, name, header, reason):
        status, errors = self.check({name: f'#pragma once\n  # include "{header}"\n'})
        self.assertEqual(status, 1, (name, header))
        self.assertIn(f"{name}:2: ", errors)
        self.assertIn(reason, errors)
        self.assertIn(header, errors)

    def test_downward_includes(self):
        self.expect_allowed("dofla/core/a.h", "dofla/core/b.h")
        self.expect_allowed("dofla/ops/cpu/a.cc", "dofla/ops/a.h")
        self.expect_allowed("dofla/checkpoint/a.h", "dofla/core/b.h")
        self.expect_allowed("dofla/model/a.h", "dofla/checkpoint/b.h")
        self.expect_allowed("dofla/features/a.h", "dofla/model/b.h")
        self.expect_allowed("dofla/linear/a.h", "dofla/features/b.h")
        self.expect_allowed("dofla/distill/a.h", "dofla/linear/b.h")
        self.expect_allowed("dofla/plan/a.h", "dofla/dof/dof_table.h")
        self.expect_allowed("dofla/pipeline.cc", "dofla/report/b.h")
        self.expect_allowed("dofla/pipeline.cc", "dofla/pipeline.h")
        self.expect_allowed("cli/a.cc", "dofla/pipeline.h")
        self.expect_allowed("dofla/reproduce/a.cc", "dofla/pipeline.h")
        self.expect_allowed("cli/a.cc", "dofla/reproduce/b.h")
        self.expect_allowed("cli/a.cc", "cli/b.h")
        self.expect_allowed("python/a.cc", "cli/b.h")
        self.expect_allowed("dofla/core/a.h", "nlohmann/json.hpp")

    def test_upward_includes(self):
        for name, header, reason in [
            ("dofla/core/a.h", "dofla/ops/b.h", "core must not include ops"),
            ("dofla/core/a.h", "dofla/checkpoint/b.h", "core must not include checkpoint"),
            ("dofla/ops/cpu/a.cc", "dofla/model/b.h", "ops must not include model"),
            ("dofla/ops/a.h", "dofla/checkpoint/b.h", "ops must not include checkpoint"),
            ("dofla/checkpoint/a.cc", "dofla/ops/b.h", "checkpoint must not include ops"),
            ("dofla/model/a.h", "dofla/dof/b.h", "model must not include dof"),
            ("dofla/dof/a.h", "dofla/plan/b.h", "dof must not include plan"),
            ("dofla/model/a.h", "dofla/features/b.h", "model must not include features"),
            ("dofla/features/a.h", "dofla/plan/b.h", "features must not include plan"),
            ("dofla/linear/a.h", "dofla/distill/b.h", "linear must not include distill"),
            ("dofla/report/a.h", "dofla/pipeline.h", "report must not include pipeline"),
            ("dofla/pipeline.cc", "dofla/reproduce/b.h", "pipeline must not include reproduce"),
            ("dofla/report/a.h", "dofla/reproduce/b.h", "report must not include reproduce"),
            ("dofla/core/a.h", "cli/b.h", "core must not include cli"),
            ("cli/a.h", "python/b.h", "cli must not include python"),
        ]:
            self.expect_wrong(name, header, reason)

    def test_cuda_headers(self):
        self.expect_allowed("dofla/ops/cuda/a.cu", "cublasLt.h")
        self.expect_allowed("dofla/core/device_cuda.cc", "cuda_runtime.h")
        self.expect_wrong("dofla/ops/a.cc", "cuda_runtime.h", "CUDA stays in")
        self.expect_wrong("dofla/model/a.cc", "cublas_v2.h", "CUDA stays in")
        self.expect_wrong("cli/a.cc", "cub/cub.cuh", "CUDA stays in")

    def test_http_headers(self):
        self.expect_allowed("dofla/serve/http_server.cc", "boost/asio/post.hpp")
        self.expect_wrong("dofla/serve/service.cc", "boost/asio/post.hpp", "Boost stays in")
        self.expect_wrong("cli/serve.cc", "boost/beast/http.hpp", "Boost stays in")

    def test_mpi_headers(self):
        self.expect_allowed("dofla/distributed/mpi.cc", "mpi.h")
        self.expect_allowed("dofla/distill/a.h", "dofla/distributed/group.h")
        self.expect_wrong("dofla/distributed/group.cc", "mpi.h", "mpi.h stays in dofla/distributed/mpi.cc")
        self.expect_wrong("cli/main.cc", "mpi.h", "mpi.h stays in")
        self.expect_allowed("dofla/distributed/nccl.cc", "nccl.h")
        self.expect_wrong("dofla/ops/cuda/a.cc", "nccl.h", "nccl.h stays in dofla/distributed/nccl.cc")
        self.expect_wrong("dofla/ops/a.cc", "dofla/distributed/group.h", "ops must not include distributed")
        self.expect_wrong("dofla/distributed/a.h", "dofla/features/b.h", "distributed must not include features")

    def test_ways_around(self):
        self.expect_wrong("dofla/core/a.h", "../ops/b.h", "write the path from the root")
        files = {"dofla/model/a.cc": '#include "b.h"\n', "dofla/model/b.h": ""}
        self.assertIn("write the path from the root", self.check(files)[1])
        self.assertIn("extras is not a layer", self.check({"dofla/extras/a.h": ""})[1])
        self.assertIn("dofla/model/a.cc:1", self.check({"dofla/model/a.cc": '#include "dofla/what/b.h"\n'})[1])


if __name__ == "__main__":
    unittest.main()
