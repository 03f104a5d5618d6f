#!/bin/sh
# The Debian package and the wheel in a clean Debian 12: `make package-check`. Both are installed there with what they ask for,
# predict and run the README's example, and a C program is compiled against the installed core.
set -eu
. tests/root.sh
make_root python3-venv

awk '/^```lua$/ { on = 1; next } /^```/ { on = 0 } on' README.md >"$root/root/hello.lua"
cp "$BUILD"/memtide_*.deb "$BUILD"/memtide-*.whl "$root/root/"

# the wheel first: the root has none of its libraries yet
inside 'python3 -m venv venv && venv/bin/pip install -q --no-index memtide-*.whl'
inside 'venv/bin/memtide predict hello.lua -q && venv/bin/memtide run hello.lua -q --steps 2 && venv/bin/python -m memtide devices'
inside 'venv/bin/python -c "
import memtide
rows = memtide.run(\"hello.lua\", set={\"batch\": 16, \"precision\": \"fp32\"}, steps=2, csv=\"wheel.csv\")
assert [r[\"status\"] for r in rows] == [\"ok\"] and rows[0][\"peak_bytes\"] == rows[0][\"predicted_peak_bytes\"], rows"'
echo "package-check: the wheel runs"

inside 'apt-get update -q >log 2>&1; apt-get install -qy --no-install-recommends ./memtide_*.deb >>log 2>&1 || { tail log; exit 1; }'
inside 'rm -f hello.csv; memtide run hello.lua -q --steps 2 && memtide --version && test -s /usr/share/man/man1/memtide.1.gz -o ! -e /usr/share/man'
inside 'apt-get install -qy --no-install-recommends gcc libc6-dev pkg-config libdnnl-dev zlib1g-dev >>log 2>&1 || { tail log; exit 1; }
    cc /usr/share/doc/memtide/example.c -Wall -Wextra -Werror $(pkg-config --cflags --libs memtide) -o example && ./example'
inside 'dpkg --remove memtide >>log && ! command -v memtide && ! find /usr -path "*memtide*" | grep .'
echo "package-check: the Debian package installs, runs, compiles a C program and goes without a trace"
