# What make installs and packs: every file of the list, nothing after uninstall, the page, the C library, the Debian package,
# the wheel. In clean systems: make package-check.
. tests/tap.sh

BUILD=$(realpath "$ROOT/${BUILD:-build}")
target() { make -s -C "$ROOT" BUILD="$BUILD" NVCC= "$@" >make.txt 2>&1; }
unset MAKEFLAGS MFLAGS MAKELEVEL

place="$WORK/a folder"
target install DESTDIR="$place" PREFIX=/usr
is $? 0 "installed into a folder with a space"
for file in bin/memtide lib/lua/5.4/memtide.so lib/libmemtide.a lib/pkgconfig/memtide.pc include/memtide/run/runtime.h \
    include/memtide/program/ops.def share/doc/memtide/LICENSE share/doc/memtide/docs/lua.md share/man/man1/memtide.1 \
    share/memtide/experiments/article.lua share/memtide/stubs/memtide.lua share/bash-completion/completions/memtide share/zsh/site-functions/_memtide \
    share/fish/vendor_completions.d/memtide.fish; do
    [ -s "$place/usr/$file" ]
    result $? "$file"
done
is "$("$place/usr/bin/memtide" --version)" "$("$MEMTIDE" --version)" "the program runs there"
touch "$place/usr/bin/other"
target uninstall DESTDIR="$place" PREFIX=/usr
is "$(find "$place" -type f)" "$place/usr/bin/other" "uninstall takes away all of it and nothing else"
is "$(find "$place" -type d | wc -l)" 3 "and its folders"

target install DESTDIR="$place" PREFIX=/usr
page=$place/usr/share/man/man1/memtide.1
for command in run predict fit report; do has "$(cat "$page")" "\\fB$command\\fR" "the man page has $command"; done
if command -v mandoc >/dev/null; then is "$(mandoc -Tlint -Wwarning "$page")" "" "mandoc has no warning"
else skip "mandoc has no warning" "there is no mandoc"; fi

# the C program finds the core by the .pc file; of a folder with DESTDIR, PREFIX is moved
if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH="$place/usr/lib/pkgconfig" pkg-config --define-variable=prefix=/usr --cflags --libs memtide)
    has "$flags" "-lmemtide" "pkg-config knows the library"
else skip "pkg-config knows the library" "there is no pkg-config"; fi
cc "$ROOT/packaging/example.c" -Wall -Wextra -Werror -I"$place/usr/include/memtide" -L"$place/usr/lib" -lmemtide -fopenmp -ldnnl -lz \
    -lpthread -ldl -lm -o example 2>cc.txt
is "$(cat cc.txt)" "" "the C program compiles with the installed headers"
cat >same.lua <<'LUA'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{name = "same", model = nn.Sequential{nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)}, input = {784},
  classes = 10, batch = 64, loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam()}
LUA
memtide predict same.lua --json -q
bytes=$(echo "$out" | sed 's/.*"predicted_peak_bytes":\([0-9]*\).*/\1/')
is "$(./example)" "101770 parameters, peak $bytes bytes" "and predicts what the script does"

if command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
    # what lies in it is looked at, not how small it is: xz takes most of this test's time
    DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1 target deb
    is $? 0 "the Debian package is built"
    package=$(tail -1 make.txt)
    has "$(dpkg-deb --field "$ROOT/$package" Depends 2>/dev/null || dpkg-deb --field "$package" Depends)" "libdnnl2" "it depends on oneDNN"
    package=$(ls "$BUILD"/memtide_*.deb)
    has "$(dpkg-deb --contents "$package")" "./usr/bin/memtide" "it has the program"
    has "$(dpkg-deb --contents "$package")" "./usr/share/doc/memtide/copyright" "and its licence"
else skip "the Debian package" "there is no dpkg-deb or no dpkg-shlibdeps"; fi

if command -v python3 >/dev/null && command -v patchelf >/dev/null; then
    target wheel
    is $? 0 "the wheel is built"
    wheel=$(ls "$BUILD"/memtide-*.whl)
    cat >wheel.py <<'PY'
import base64, csv, hashlib, io, sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
record = next(n for n in z.namelist() if n.endswith("RECORD"))
rows = {r[0]: r[1:] for r in csv.reader(io.StringIO(z.read(record).decode()))}
assert set(rows) == set(z.namelist()), set(rows) ^ set(z.namelist())
for name, (digest, size) in rows.items():
    data = z.read(name)
    if name != record:
        assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), name
        assert int(size) == len(data), name
for n in z.namelist():
    out = z.extract(n, "wheel")
    import os; os.chmod(out, z.getinfo(n).external_attr >> 16)
print(sum("licenses/" in n for n in z.namelist()) > 3)
PY
    is "$(python3 wheel.py "$wheel")" True "its list of files is right, and licences are there"
    cat >use.py <<'PY'
import memtide
rows = memtide.predict("same.lua", set={"batch": [32, 64]}, memory="1GiB")
print([r["predicted_peak_bytes"] for r in rows][1], [r["batch"] for r in rows])
rows = memtide.run("same.lua", steps=2, csv="w.csv")
print(rows[0]["status"], rows[0]["peak_bytes"] == rows[0]["predicted_peak_bytes"])
try:
    memtide.predict("nothing.lua")
except memtide.MemtideError as e:
    print(e.status, e)
PY
    is "$(PYTHONPATH=wheel python3 use.py)" "$bytes [32, 64]
ok True
66 memtide: cannot open the script \"nothing.lua\": No such file or directory" "its module gives rows, and the program's errors"
else skip "the wheel" "there is no python3 or no patchelf"; fi

# ---- docs/jupyter.md: its six lines, where there is pandas
awk '/^```python$/ { on = 1; next } /^```/ { exit } on' "$ROOT/docs/jupyter.md" >jupyter.py
awk '/^```lua$/ { on = 1; next } /^```/ { on = 0 } on' "$ROOT/README.md" >hello.lua
for python in ${PYTHON:-} python3 none; do command -v "$python" >/dev/null && "$python" -c 'import pandas' 2>/dev/null && break; done
if [ "$python" != none ]; then
    ln -s "$MEMTIDE" memtide
    found=$(PATH=$PWD:$PATH $python jupyter.py)
    has "$found" "33693184" "docs/jupyter.md: pandas has the predictions"
else skip "docs/jupyter.md: pandas has the predictions" "there is no pandas"; fi
finish
