#!/usr/bin/env python3
"""What is installed, as an outside project and a user meet it: the library through CMake and through
pkg-config, the examples, the binary, its man pages and completion, and the Debian package.

usage: package_test.py SOURCE BUILD [TEST...]      the repository, and a folder where all is built
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

SOURCE, BUILD = (Path(argument).resolve() for argument in sys.argv[1:3])
ASSETS = "share/dofla"
# The whole of an outside project.
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES CXX)
{find}
add_executable(example {source})
target_link_libraries(example PRIVATE {library})
"""
FIND = "find_package(dofla REQUIRED)"


def run(*command, **options):
    """Standard output and error of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def options_of(help_text):
    """The options that a help text lists, under all their names."""
    names = re.findall(r"^  (-[^ ]+)", help_text, re.M)
    return [name for entry in names for name in entry.split(",")]


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # Installed in one place and moved to another: nothing may depend on the first.
        run("cmake", "--install", BUILD, "--prefix", cls.folder / "first")
        cls.prefix = cls.folder / "moved here"
        (cls.folder / "first").rename(cls.prefix)
        cls.library_folder = next(cls.prefix.glob("lib/**/libdofla.so")).parent
        cls.dofla = cls.prefix / "bin/dofla"
        listed = re.search(r"\nCommands:\n(.*?)\n\n", run(cls.dofla, "--help"), re.S)[1]
        cls.commands = re.findall(r"^  ([a-z]+) ", listed, re.M)

    def test_the_outside_project_is_documented(self):
        text = (SOURCE / "docs/library.md").read_text(encoding="utf-8")
        self.assertIn(PROJECT.format(find=FIND, source="distill.cc", library="dofla::dofla"), text)

    def outside(self, name, source, find, library):
        """Configures an outside project of one program; returns the folder that it is built in."""
        project = self.folder / name
        project.mkdir()
        (project / "CMakeLists.txt").write_text(PROJECT.format(find=find, source=source, library=library))
        run("cmake", "-G", "Ninja", "-S", project, "-B", project / "build", "-DCMAKE_BUILD_TYPE=Debug",
            f"-DCMAKE_PREFIX_PATH={self.prefix}")
        return project / "build"

    def try_example(self, name, program):
        assets = self.prefix / ASSETS
        arguments, expected = {
            "distill": ([assets / "wiki-mini", assets / "wikipedia.jsonl.zst", self.folder / "linear", 2],
                        r"^teacher [1-9]\.\d+, student [1-9]\.\d+ nats"),
            "generate": ([assets / "wiki-mini", "The river flows"], r"^The river flows.{20,}"),
        }[name]
        self.assertRegex(run(program, *arguments), expected)

    def test_examples_through_cmake(self):
        for source in sorted((SOURCE / "examples").glob("*.cc")):
            with self.subTest(source.name):
                build = self.outside(source.stem, source, FIND, "dofla::dofla")
                run("cmake", "--build", build)
                self.assertIn("libdofla.so.", run("readelf", "-d", build / "example"))
                self.try_example(source.stem, build / "example")

    def test_readme_quotes_an_example(self):
        sample, = re.findall(r"```cpp\n(.*?)```", (SOURCE / "README.md").read_text(encoding="utf-8"), re.S)
        example = (SOURCE / "examples/distill.cc").read_text(encoding="utf-8")
        self.assertGreater(sample.count("\n"), 5)
        self.assertIn(textwrap.indent(sample, "    "), example)

    def test_static_library(self):
        build = self.outside("static", SOURCE / "examples/generate.cc",
                             "find_package(dofla REQUIRED COMPONENTS static)", "dofla::static")
        run("cmake", "--build", build)
        self.assertNotIn("libdofla", run("readelf", "-d", build / "example"))
        self.try_example("generate", build / "example")

    def test_other_versions_are_refused(self):
        for version in ("0.0", "0.9", "1.0"):
            with self.assertRaisesRegex(AssertionError, "version"):
                self.outside("version" + version, SOURCE / "examples/generate.cc",
                             f"find_package(dofla {version} REQUIRED)", "dofla::dofla")

    def test_through_pkg_config(self):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.library_folder / "pkgconfig")}
        flags = run("sh", "-c", "pkg-config --cflags --libs dofla", env=environment).strip()
        program = self.folder / "by_hand"
        # The shell reads the flags: a folder's name may hold a space.
        run("sh", "-c", f'g++ "$1" {flags} -Wl,-rpath,"$2" -o "$3"', "sh",
            SOURCE / "examples/generate.cc", self.library_folder, program)
        self.try_example("generate", program)

    def test_inside_another_project(self):
        build = self.outside("inside", SOURCE / "examples/generate.cc",
                             f'add_subdirectory("{SOURCE}" dofla)', "dofla::dofla")
        targets = run("ninja", "-C", build, "-t", "targets", "all")
        self.assertIn("libdofla.a:", targets)
        for other in ("dofla_tests", "dofla_cli", "_bench", "man_pages"):
            self.assertNotIn(other, targets)
        self.assertIn("libdofla.a", run("ninja", "-C", build, "-t", "commands", "example"))
        self.assertNotIn("Installing", run("cmake", "--install", build, "--prefix", self.folder / "nothing"))

    def test_installed_headers_include_installed_headers(self):
        include = self.prefix / "include"
        headers = sorted(include.rglob("*.h"))
        self.assertGreater(len(headers), 30)
        for header in headers:
            for name in re.findall(r'#\s*include\s*[<"](dofla/[^>"]+)', header.read_text(encoding="utf-8")):
                self.assertTrue((include / name).is_file(), f"{header} includes {name}")

    def test_shared_library_is_versioned(self):
        self.assertRegex(run("readelf", "-d", self.library_folder / "libdofla.so"),
                         r"SONAME.*\[libdofla\.so\.\d+\.\d+\]")
        self.assertTrue((self.library_folder / "libdofla.a").is_file())

    def test_assets_are_those_of_the_prefix(self):
        weights = self.prefix / ASSETS / "wiki-mini/config.json"
        kept = weights.read_bytes()
        self.assertIn("wiki-mini", run(self.dofla, "inspect"))
        weights.write_text("{")
        with self.assertRaises(AssertionError) as failure:
            run(self.dofla, "inspect")
        weights.write_bytes(kept)
        self.assertIn(str(weights), str(failure.exception))

    def test_man_pages_name_every_option(self):
        for command in ([], *([name] for name in self.commands)):
            page = self.prefix / "share/man/man1" / ("-".join(["dofla", *command]) + ".1")
            text = page.read_text(encoding="utf-8").replace("\\-", "-")
            for option in options_of(run(self.dofla, *command, "--help")):
                self.assertRegex(text, rf"(?m)^\.B .*(?<![\w-]){option}(?![\w-])")

    def complete(self, *words):
        script = self.prefix / "share/bash-completion/completions/dofla"
        return run("bash", "-c", '. "$0"; dofla=$1; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                   '_dofla "$dofla"; printf "%s\n" "${COMPREPLY[@]}"',
                   script, self.dofla, "dofla", *words).split()

    def test_completion(self):
        self.assertEqual(self.complete(""), self.commands)
        self.assertIn("--version", self.complete("--"))
        for command in self.commands:
            self.assertEqual(self.complete(command[:-1]), [command])
            text = run(self.dofla, command, "--help")
            self.assertEqual(self.complete(command, "-"), options_of(text))
            for names, values in re.findall(r"^  (--[^ ]+) [A-Z]+:\{(.*?)\}", text, re.M):
                for name in names.split(","):
                    self.assertEqual(self.complete(command, name, ""), values.split(","))
        self.assertEqual(self.complete("--threads", "2", "distill", "--loss", "dir"), ["direct"])
        self.assertEqual(self.complete("plan", ""), [])  # a file: bash's own business

    def test_debian_package(self):
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", self.folder / "deb", cwd=self.folder)
        package, = (self.folder / "deb").glob("dofla_*.deb")
        fields = run("dpkg-deb", "-f", package)
        for library in ("libdnnl", "libfmt", "libpcre2-8", "libc6"):
            self.assertRegex(fields, rf"(?m)^Depends:.*\b{library}")
        root = self.folder / "root"
        run("dpkg", "-x", package, root)
        for name in ("usr/include/dofla/pipeline.h", "usr/lib/libdofla.so", "usr/lib/libdofla.a",
                     "usr/lib/cmake/dofla/dofla-config.cmake", "usr/lib/pkgconfig/dofla.pc",
                     "usr/share/man/man1/dofla-distill.1", "usr/share/doc/dofla/copyright",
                     "usr/share/bash-completion/completions/dofla"):
            self.assertTrue((root / name).is_file(), name)
        student = self.folder / "student"
        said = run(SOURCE / "tools/demo.sh", root / "usr/bin/dofla", student, 2)
        self.assertIn(f"file://{student}/report.html", said)
        self.assertTrue((student / "report.html").is_file())
        self.assertIn("linear", run(root / "usr/bin/dofla", "inspect", student))
        if (BUILD / "python").is_dir():
            self.try_python_package(root, student)

    def try_python_package(self, root, student):
        package, = (self.folder / "deb").glob("python3-dofla_*.deb")
        fields = run("dpkg-deb", "-f", package)
        self.assertRegex(fields, r"(?m)^Depends: dofla \(= [\d.]+\), python3-numpy, python3 \(>= 3")
        self.assertNotIn("share/dofla", run("dpkg", "-c", package))  # that is in the other one
        self.assertFalse(list(root.rglob("*dist-packages*")))
        run("dpkg", "-x", package, root)
        modules = root / "usr/lib/python3/dist-packages"
        for name in ("__init__.py", "_functions.pyi", "py.typed"):
            self.assertTrue((modules / "dofla" / name).is_file(), name)
        # Library and built-in model are found from where the module is.
        script = "import sys, dofla; print(dofla.__file__, dofla.inspect().layers, dofla.Model(sys.argv[1]).device)"
        environment = {**os.environ, "PYTHONPATH": str(modules), "PYTHONDONTWRITEBYTECODE": "1"}
        said = run("/usr/bin/python3", "-c", script, student, env=environment, cwd=self.folder)
        self.assertEqual(said.split(), [str(modules / "dofla/__init__.py"), "6", "cpu"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
