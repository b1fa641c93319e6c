#!/bin/sh
# Installs the Debian packages that a SET of steps needs. Nothing happens when all are there; without
# root the command to run is printed and the build stops.
# usage: tools/install_packages.sh [SET...]     left out: every set
#   build     compile the library and the binary
#   test      compile and run the tests
#   bench     compile the benchmarks
#   lint      formatter, linter, sanitizers and fuzz targets
#   package   man pages and the Debian package
#   python    the Python module and its tests
#   torch     the tests of what a student's folder holds for Transformers
set -eu

packages_of() {
  case $1 in
    build) echo "g++ cmake ninja-build pkg-config
      libdnnl-dev libopenblas-openmp-dev liblapacke-dev libhwy-dev
      libfmt-dev nlohmann-json3-dev libcli11-dev
      libpcre2-dev libutf8proc-dev libzstd-dev zlib1g-dev libboost-dev
      libopenmpi-dev" ;;
    # Node and npm are often there from elsewhere, and Debian's would not go with them.
    test) echo "libgtest-dev openmpi-bin python3 git chromium $(command -v npm >/dev/null || echo nodejs npm)" ;;
    bench) echo "libbenchmark-dev" ;;
    lint) echo "clang libclang-rt-14-dev libomp-dev clang-format clang-tidy python3 git" ;;
    package) echo "python3 dpkg-dev file" ;;
    python) echo "python3-dev pybind11-dev python3-numpy" ;;
    torch) echo "python3-torch" ;;
    *)
      echo "install_packages: $1 is not a set: build, test, bench, lint, package, python or torch" >&2
      exit 2
      ;;
  esac
}

[ $# -gt 0 ] || set -- build test bench lint package python torch
packages=""
for set in "$@"; do packages="$packages $(packages_of "$set")"; done

missing=""
for package in $(printf '%s\n' $packages | sort -u); do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
    missing="$missing $package"
done
[ -n "$missing" ] || exit 0

command="apt-get update && apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -ne 0 ]; then
  echo "dofla needs packages that are not installed. Run this, then try again:" >&2
  echo "  sudo sh -c '$command'" >&2
  exit 1
fi
echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
sh -c "$command" >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
