#!/bin/sh
# Installs the Debian packages that dofla is built from and tested with. Nothing happens when all
# are there; without root the command to run is printed and the build stops.
set -eu

packages="g++ cmake ninja-build pkg-config git
  libdnnl-dev libopenblas-openmp-dev liblapacke-dev libhwy-dev
  libfmt-dev nlohmann-json3-dev libcli11-dev
  libpcre2-dev libutf8proc-dev libzstd-dev zlib1g-dev
  libgtest-dev libbenchmark-dev
  clang libclang-rt-14-dev libomp-dev clang-format clang-tidy python3 chromium"

missing=""
for package in $packages; do
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
export DEBIAN_FRONTEND=noninteractive
sh -c "$command" >/tmp/dofla-packages.log 2>&1 || { tail -n 20 /tmp/dofla-packages.log >&2; exit 1; }
