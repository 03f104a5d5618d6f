# Which files memtide opens, and as what: none that others put in its way, none that is no file.
. tests/tap.sh

cat >small.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{name = "small", input = {4}, classes = 2, loss = nn.CrossEntropyLoss(), steps = 1, warmup = 0,
  model_name = "m", model = function() return nn.Linear(4, 2) end, sweep = {{"batch", {1, 2}}}}
E

# ---- the CUDA plugin: beside the program and where it is installed, and in no other folder
cat >evil.c <<'E'
#include <stdio.h>
__attribute__((constructor)) static void run(void) { fputs("foreign code runs\n", stderr); }
E
cc -shared -fPIC -o evil.so evil.c
plugin() { # folder
    mkdir -p "$1" && cp evil.so "$1/memtide_cuda.so"
}
module=$(dirname "$MEMTIDE")/memtide.so
mkdir -p X/build X/bin X/lib/lua/5.4
cp "$MEMTIDE" X/build/memtide
cp "$MEMTIDE" X/bin/memtide
cp "$module" X/lib/lua/5.4/
cp "$module" X/build/
unset MEMTIDE_CUDA
plugin memtide
plugin X/memtide
plugin X/lib/memtide
X/build/memtide devices >out.txt 2>&1
has "$(cat out.txt)" "the CUDA plugin is missing: looked for memtide_cuda.so in $PWD/X/build/" \
    "a build without its plugin looks beside the program"
is "$(grep -c "foreign code runs" out.txt)" 0 "and nowhere else"
has "$(X/bin/memtide devices 2>&1)" "foreign code runs" "an installed one has it in ../lib/memtide"
cat >device.lua <<'E'
package.cpath = arg[1] .. "/?.so"
require "memtide"
print(select(2, require "memtide.core".device "cuda:0"))
E
has "$(lua5.4 device.lua X/lib/lua/5.4 2>&1)" "foreign code runs" "so does the installed module"
lua5.4 device.lua X/build >out.txt 2>&1
is "$(grep -c "foreign code runs" out.txt) $(grep -c "the CUDA plugin is missing" out.txt)" "0 1" \
    "one that is built looks beside it"
rm -rf X memtide

# ---- what is replaced by rename is a file. Devices have links to them here: should this fail, they stay what they are
ln -s /dev/stdout stdout
ln -s /dev/full full
memtide cells small.lua -o list.csv
is "$status" 0 "a list of cells"
memtide cells small.lua -o stdout
is "$status" 0 "to standard output"
cmp out.txt list.csv
result $? "it is the same"
has "$err" "stdout: 2 cells in 1 part of 2" "and told beside it"
"$MEMTIDE" cells small.lua -o stdout 2>/dev/null | cat >piped.csv
cmp piped.csv list.csv
result $? "also where that is a pipe"
ln -s /proc/self/fd/1 output
ln -s /dev/null nothing
"$MEMTIDE" cells small.lua -o output >listed.csv 2>/dev/null
cmp listed.csv list.csv
is "$? $(readlink output)" "0 /proc/self/fd/1" "a link to standard output stays one"
memtide cells small.lua -o nothing
is "$status $(readlink nothing)" "0 /dev/null" "so does one to a device"
memtide cells small.lua -o full
is "$status $err" "66 memtide: cannot write full: No space left on device" "a full device is told"
is "$(readlink full stdout | tr '\n' ' ')" "/dev/full /dev/stdout " "links to devices stay links"
memtide cells small.lua -o .
is "$status $err" "66 memtide: cannot write .: it is a folder" "a folder is refused"
mkfifo fifo
timeout 20 cat fifo >through.csv &
memtide cells small.lua -o fifo
wait $!
cmp through.csv list.csv
is "$? $([ -p fifo ] && echo fifo)" "0 fifo" "a FIFO is written to"
if mknod device c 1 3 2>/dev/null && { : >device; } 2>/dev/null; then # root's, where nodes work
    memtide cells small.lua -o device
    is "$status $([ -c device ] && echo device)" "0 device" "a device node"
fi
mkdir elsewhere
echo old >elsewhere/list.csv
chmod 600 elsewhere/list.csv
ln -s elsewhere/list.csv link.csv
memtide cells small.lua -o link.csv
is "$(readlink link.csv) $(stat -c %a elsewhere/list.csv)" "elsewhere/list.csv 600" "a link to a file stays one"
cmp elsewhere/list.csv list.csv
is "$? $(ls elsewhere)" "0 list.csv" "and the file is replaced, with its permissions"
ln -s none.csv dangling.csv
memtide cells small.lua -o dangling.csv
is "$status $err" "66 memtide: cannot write dangling.csv: it is a symbolic link to a file that is not there" \
    "a link to nothing"
cat >save.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
local trainer = assert(mt.trainer{model = nn.Linear(4, 2), input = {4}, classes = 2, batch = 1,
  loss = nn.CrossEntropyLoss()})
print(trainer:save(arg[1]))
E
memtide save.lua full
is "$out" "nil	cannot write full: No space left on device	file" "trainer:save"
memtide save.lua nothing
is "$out $(readlink nothing)" "true /dev/null" "leaves devices and links what they are"
mkfifo weights
timeout 20 cat weights >weights.safetensors &
memtide save.lua weights
wait $!
memtide -e 'print(#require "memtide.core".safetensors("weights.safetensors"):list())'
is "$out" 2 "and writes to what is no file"

# ---- rows may lie where a link leads
mkdir rows
"$MEMTIDE" run small.lua --csv rows/x.csv --quiet >/dev/null
"$MEMTIDE" run small.lua --csv y.csv --quiet >/dev/null
ln -s rows/x.csv x.csv
memtide run small.lua --csv x.csv --retry all
is "$status $(wc -l <rows/x.csv) $(readlink x.csv)" "0 5 rows/x.csv" "rows are appended through a link"
memtide merge x.csv y.csv
is "$status $(wc -l <rows/x.csv) $(readlink x.csv)" "0 3 rows/x.csv" "and replaced where it leads"

# ---- the files beside the rows are no links
for name in y.csv.lock y.csv.live.new y.csv.live.tmp0 y.csv.new y.csv.tmp0 y.csv.torn; do
    echo precious >victim
    ln -sf victim "$name"
    printf 'half a line' >>y.csv
    memtide run small.lua --csv y.csv --retry all
    memtide merge y.csv rows/x.csv
    is "$(cat victim)" precious "a link in the place of $name"
    rm -f "$name" y.csv.torn
done
ln -s victim y.csv.lock
memtide run small.lua --csv y.csv
is "$status" 66 "a lock that is a link"
has "$err" 'cannot lock by a symbolic link "y.csv.lock"' "is told"
rm y.csv.lock

# ---- lists of cells
cat >names.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
local names = {"=1+1", "'=1+1", "@SUM(1)", "+1", "-1", "plain"}
if arg[1] then names = {load("return " .. arg[1])()} end
local cases = {}
for i, name in ipairs(names) do cases[i] = {case = name, own = i == 1 and -1 or name} end
return mt.experiment{name = "names", input = {4}, classes = 2, loss = nn.CrossEntropyLoss(), steps = 1, warmup = 0,
  model_name = "m", model = function(s) return nn.Linear(4, s.own and 2) end, cases = cases}
E
memtide cells names.lua -o names.cells.csv
is "$status" 0 "a list with names that are formulas"
is "$(cut -d, -f3 names.cells.csv | tr '\n' ' ')" "case '=1+1 ''=1+1 '@SUM(1) '+1 '-1 plain " "guarded, as rows are"
is "$(sed -n 2p names.cells.csv | grep -c ',-1$')" 1 "a number is a number"
memtide run names.lua --cells names.cells.csv --shard 1/1
is "$status $(wc -l <names.1-of-1.csv)" "0 7" "is read back as it was written"
memtide merge all.csv names.1-of-1.csv --cells names.cells.csv
is "$status" 0 "and finds its rows"
memtide cells names.lua -o broken.csv -- '"a\nb"'
is "$status $err" '65 memtide: a list of cells cannot hold a line break: case of the cell "a\010b" is "a\010b"' \
    "a line break is refused when the list is written"
is "$(ls broken.csv* 2>/dev/null)" "" "and nothing is left of it"
memtide slurm names.lua -o jobs -- '"a\nb"'
is "$status" 65 "also for Slurm"
memtide slurm small.lua -o -x
is "$status" 0 "a folder whose name begins as an option does"
mkdir bin
printf '#!/bin/sh\nfor word; do echo "$word" >&2; done\necho 1\n' >bin/sbatch
chmod +x bin/sbatch
PATH=$PWD/bin:$PATH sh ./-x/submit.sh >/dev/null 2>words.txt
is "$(grep -c '^-x' words.txt) $(grep -c '^\./-x/.*\.sh$' words.txt)" "0 2" "is none for sbatch"

# ---- names of experiments
for name in ../../x a/b 'a\\nb' 'a\\0b' ''; do
    sed "s|name = \"small\"|name = \"$name\"|" small.lua >named.lua
    memtide cells named.lua
    is "$status" 65 "the name \"$name\""
    has "$err" "named.lua:3: experiment: name: expected a name without slashes and control characters" "is refused"
done

# ---- messages do not drive the terminal
escape=$(printf '\033')
tensors() { # header, file: with 4 bytes of data
    printf "\\$(printf %03o ${#1})\\0\\0\\0\\0\\0\\0\\0" >"$2"
    printf '%s0000' "$1" >>"$2"
}
tensors '{"w":{"dtype":"\u001b[2J","shape":[1],"data_offsets":[0,4]}}' type.safetensors
tensors '{"a\u001b[31m\u009b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' name.safetensors
memtide -e 'print(require "memtide.core".safetensors("type.safetensors"))'
has "$out" 'dtype: expected a type such as F32, found "\x1b[2J"' "the type of a tensor"
sed 's/trainer:save(arg\[1\])/trainer:load(arg[1])/' save.lua >load.lua
memtide load.lua name.safetensors
has "$err" 'unexpected: a\x1b[31m\xc2\x9b' "names that were not expected"
sed "s/plain/${escape}[31mplain/" names.cells.csv >foreign.csv
memtide run names.lua --cells foreign.csv --shard 1/1
has "$err" 'was \x1b[31mplain (repeat 1), it is plain' "a name in a list"
sed "s/,ok,/,${escape}]0;ok,/" names.1-of-1.csv >foreign.csv
memtide verify foreign.csv
has "$out" '\x1b]0;ok' "a status of a file that is verified"
is "$(cat out.txt err.txt | grep -c "$escape")" 0 "never the byte itself"

# ---- results that another program has saved
memtide run small.lua --csv marked.csv -q
{ printf '\357\273\277'; cat marked.csv; } >bom.csv
memtide report bom.csv -o bom.html
is "$status" 0 "a file that begins with a byte order mark"
memtide merge joined.csv bom.csv
is "$(head -1 joined.csv)" "$(head -1 marked.csv)" "... whose mark is no part of the first column"
memtide verify bom.csv
has "$out" "bom.csv: 2 rows, 0 samples: nothing found" "... and is whole"
column=$(head -1 marked.csv | tr , '\n' | grep -n '^step_ms$' | cut -d: -f1)
awk -F, -v OFS=, -v c="$column" 'NR == 2 { $c = "nan" } 1' marked.csv >nan.csv
memtide verify nan.csv
has "$status $out" "1 nan.csv:2: step_ms: 1 steps of nan ms" "a time that is no number"
finish
