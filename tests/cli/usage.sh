# The rest of the command line: help, mistakes, plain scripts, the prompt, Ctrl-C.
. tests/tap.sh

fails() { # status, part of the message, what, arguments...
    wanted=$1 part=$2 what=$3
    shift 3
    memtide "$@"
    is $status "$wanted" "$what"
    has "$err" "memtide: $part" "... $part"
}

memtide --help
is $status 0 "--help"
for word in run predict explain dump devices --memory "Exit status"; do has "$out" "$word" "help tells of $word"; done
memtide help run
has "$out" "memtide run SCRIPT" "help of a command"
memtide --version
has "$out" "memtide 0." "--version"
memtide devices
has "$out" "cpu " "devices lists the CPU"
has "$out" "cuda:0" "and the GPU, or why there is none"

# ---- the tables of columns and settings, which the docs show as they are printed
memtide help columns
is $status 0 "help of the columns"
has "$out" "predicted_peak_bytes" "has each"
memtide help settings
has "$out" "workspace_limit" "help of the settings"
for topic in columns:sweeps settings:experiments; do
    memtide help "${topic%:*}" --markdown
    first=$(echo "$out" | head -1)
    is "$(awk -v first="$first" '$0 == first { on = 1 } /^$/ { on = 0 } on' "$ROOT/docs/${topic#*:}.md")" "$out" \
        "docs/${topic#*:}.md has the table of ${topic%:*}"
done
fails 2 'unknown command "colums" (did you mean "columns"?)' "a misspelt topic" help colums

# ---- wrong usage
echo 'return require "memtide".experiment{name = "x", model = require "memtide".nn.ReLU(), input = {2},
  loss = require "memtide".nn.MSELoss()}' >x.lua
echo 1 >rows.csv
for command in predict explain "plot ranks"; do
    # shellcheck disable=SC2086 # words
    fails 2 "rows.csv: expected a script in Lua, found a file of results" "results in the place of a script" $command rows.csv
done
echo 'import torch' >x.py
fails 2 "x.py: expected a script in Lua, found one in Python: memtide import FILE.py:NAME" "and a program in Python" predict x.py
fails 2 'unknown command "rum" (did you mean "run"?)' "a misspelt command" rum x.lua
fails 2 'unknown option --meory (did you mean "memory"?)' "a misspelt option" run x.lua --meory 3
fails 2 "--memory: expected a size" "a size that is none" run x.lua --memory much
fails 2 "--memory: SIZE is missing" "an option without its value" run x.lua --memory
fails 2 "--json takes no value" "a switch with a value" run x.lua --json=1
fails 2 "run: expected one script" "no script" run
fails 2 '--set: unknown setting "bacth"' "a misspelt setting" run x.lua --set bacth=1
fails 2 '--set: precision: expected one of' "a wrong value" run x.lua --set precision=fp31
fails 2 'unknown option --anything' "an option that no script can declare" compare a.csv b.csv --anything
fails 2 'no case has "zzz" in its name; there are: ' "no such case" run x.lua --case zzz
fails 2 '--memory: expected a size such as 24GiB, found "24", which is 24 bytes' "a size without its unit" predict x.lua --memory 24
fails 2 "unknown device" "a device that nobody knows" run x.lua --device abacus
fails 69 "device 'cuda:99'" "a device that is not here" run x.lua --device cuda:99
fails 66 'cannot open the script "none.lua"' "a script that is not there" run none.lua
fails 66 'cannot' "a file that cannot be written" run x.lua --csv /nowhere/x.csv

fails 2 "unknown device" "the same as a setting" run x.lua --set device=abacus
fails 69 "device 'cuda:99'" "also of an axis" run x.lua --set device=cpu,cuda:99
is "$(ls ./*.csv 2>&1 | grep -c x.csv)" 0 "before any cell"
fails 2 "--memory: expected a command before it: memtide run SCRIPT" "no command" --memory 1GiB
fails 2 'unknown option --meory' "a misspelt one" --meory 1GiB
fails 2 "cells: --json is no option of this command; of: run, predict, status, watch, fit, explain" "JSON of cells" \
    cells x.lua --json
fails 2 'explain: --counting: expected one of outputs article table, found "tabel" (did you mean "table"?)' "a counting" \
    explain x.lua --counting tabel
fails 2 '--depth: expected a whole number of at least 1, found "0"' "no levels" explain x.lua --depth 0
fails 2 "explain: --memory is no option of this command" "a limit of explain" explain x.lua --memory 1GiB
fails 2 "dump: --csv is no option of this command; of: run, predict, status, watch, fit, explain" "rows of dump" \
    dump x.lua --csv x.csv
fails 2 "run: --plan is no option of this command; of: dump" "a plan of run" run x.lua --plan
fails 2 "devices: --set is no option of this command" "settings of devices" devices --set batch=1

# ---- nothing is said twice, for one of two values would be left out without a word
fails 2 "--set batch is given twice: expected once, with all its values" "an axis twice" predict x.lua --set batch=1..3 --set batch=5
fails 2 "--case is given twice" "an option twice" predict x.lua --case a --case=b
fails 2 "--device: --set device gives that already" "a setting by two words" run x.lua --set device=cpu --device cpu
fails 2 "--devices: --device gives that already" "devices by two words" run x.lua --device cpu --devices cpu,cpu
fails 2 "--set epochs: --steps gives that already" "what an option takes away" run x.lua --steps 3 --set epochs=2
fails 2 "--set rounds: --quick gives that already" "what a switch takes away" run x.lua --quick --set rounds=2
fails 2 "--set world: --world gives that already" "numbers of ranks" fit x.lua --world 2 --set world=4
memtide predict x.lua -q -q --set batch=1 --set precision=fp32
is $status 0 "several settings, and a switch twice"
fails 2 "run: --json and --csv - both write" "two kinds of rows at once" run x.lua --json --csv -
memtide help cells
is "$(echo "$out" | grep -c -e --json -e --plan)" 0 "help of a command leaves out what it has not"
ln -s nothing.csv link.csv
fails 66 'cannot create "link.csv": it is a symbolic link to a file' "a link to nothing" run x.lua --csv link.csv
memtide explain x.lua --set precision=bf16 --set batch=8
has "$out" "of the step's 32 bytes of outputs, 32 of these in 16 bits" "explain counts what is in 16 bits"
memtide explain x.lua --set precision=fp16 --set batch=8
has "$out" "32 of these in 16 bits" "of either type"
memtide explain "$ROOT/experiments/article.lua" --set precision=fp16
has "$out" "Conv2d   (64, 64, 30, 30)         1792     3584       7372800" "explain counts in the precision's types"
memtide explain "$ROOT/experiments/vit.lua" -q
has "$out" "layers.0-5 x 6" "blocks that repeat are one line"
is "$(echo "$out" | grep -c '^  layers')" 1 "of the tree"
is "$(echo "$out" | grep -c article)" 0 "and nothing speaks of an article"
lines=$(echo "$out" | wc -l)
memtide explain "$ROOT/experiments/vit.lua" -q --depth 2
is "$(echo "$out" | wc -l)" $((lines - 11)) "which --depth cuts"
memtide explain "$ROOT/experiments/vgg16_memory.lua" -q --set batch=1
has "$out" "outputs that the table counts" "the table of VGG16 counts otherwise"
has "$(echo "$out" | grep ^activations)" " 60348320 " "with poolings and the last output"
is "$(echo "$out" | grep '^24-29 x 3' | tr -s ' ')" \
    "24-29 x 3 (Conv2d, ReLU) (1, 512, 14, 14) 7079424 28317696 2408448 2.30 2.41 5.1 2.1 * Conv2d" "layers in turns are one line, with sums"
memtide explain "$ROOT/experiments/vgg16_memory.lua" -q --set batch=1 --counting article
has "$(echo "$out" | grep ^activations)" " 54222848 " "or as the article does"
memtide explain x.lua --set batch=8
has "$out" "of the step's 64 bytes of outputs: also" "and leaves it out where nothing is"
echo "cell,status" >results.csv
fails 66 '"results.csv" is there already' "explain keeps a file of results" explain x.lua --csv results.csv
is "$(cat results.csv)" "cell,status" "as it was"
memtide explain x.lua --csv table.csv
memtide explain x.lua --csv table.csv
is $status 0 "explain replaces a table of its own"
has "$(cat table.csv)" "experiment,case,row" "which it wrote before"
fails 66 'cannot write to /nowhere/x.csv: No such file' "explain to no folder" explain x.lua --csv /nowhere/x.csv

# ---- output that cannot be written
if [ -w /dev/full ]; then
    for words in "run -q x.lua --csv -" "run -q x.lua --json" "predict x.lua" "dump x.lua" "dump x.lua --plan" \
        "explain x.lua" "explain x.lua --csv -" "profile x.lua" "profile x.lua --csv -" "devices" "help" "--version" \
        "-i"; do
        status=0
        echo "print(1)" | "$MEMTIDE" $words >/dev/full 2>err.txt || status=$?
        is "$status" 66 "$words on a full disk"
        is "$(grep -c 'memtide: cannot write to ' err.txt)" 1 "... says so, once"
    done
fi
rm -f x.csv

# ---- mistakes in scripts
echo 'return 7' >seven.lua
fails 65 "seven.lua returns no experiment" "a script that returns something else" run seven.lua
printf 'local mt = require "memtide"\nmt.joint{}\n' >joint.lua
fails 65 "joint.lua:2: joint: this script trains by itself and is no experiment: memtide joint.lua runs it" \
    "a joint training, before it trains" predict joint.lua
printf 'local a\na.b = 1\n' >nil.lua
fails 65 "nil.lua:2:" "an error has its line" nil.lua
case $err in *traceback*) result 1 "no traceback unasked" ;; *) result 0 "no traceback unasked" ;; esac
memtide -v nil.lua
has "$err" "stack traceback" "-v shows it"
echo 'local x = = 1' >syntax.lua
fails 65 "syntax.lua:1:" "a syntax error" syntax.lua
echo 'prnt(1)' >global.lua
fails 65 'global.lua:1: undefined variable "prnt" (did you mean "print"?)' "an undefined global" global.lua
printf 'local nn = require "memtide".nn\nnn.Conv2d(1, 2, {kernel = 3})\n' >option.lua
fails 65 'option.lua:2: Conv2d: unknown option "kernel"' "a wrong option" option.lua
echo 'error(setmetatable({}, {__tostring = function() return "an object" end}))' >object.lua
fails 65 "an object" "an error that is an object" object.lua

printf 'local mt = require "memtide"\n\nreturn mt.experiment{\n  btach = 1,\n}\n' >tail.lua
fails 65 'tail.lua:3: experiment: unknown key "btach" (did you mean "batch"?)' "a returned experiment" \
  run tail.lua
printf '#!/usr/bin/env memtide\nlocal mt = require "memtide"\nif mt then\n  return mt.trainer(7)\nend\n' >tail.lua
fails 65 'tail.lua:4: trainer: expected a table' "and another call, after a #! line" tail.lua
fails 66 'cannot open the script "."' "a folder is no script" run .

printf 'local mt = require "memtide"\nmt.data.mnist()\n' >misuse.lua
fails 65 'misuse.lua:2: data.mnist: folder: expected a string, found nil' "a wrong argument" misuse.lua

# ---- plain scripts
echo 'print(arg[0], arg[1], ..., (require "helper"))' >plain.lua
echo 'return "helped"' >helper.lua
memtide plain.lua a b
is "$out" "$(printf 'plain.lua\ta\ta\thelped')" "arguments, and modules beside the script"
mkdir sub && mv helper.lua plain.lua sub
memtide sub/plain.lua x
has "$out" "helped" "also from another folder"
memtide -e 'print(6 * 7)'
is "$out" 42 "-e"
memtide -l memtide -e 'print(memtide.version)'
has "$out" "0." "-l"
is "$(echo 'print(1 + 1)' | "$MEMTIDE" -)" 2 "a script from standard input"
shown=$(printf '6 * 7\nlocal t = {\n1}\nnosuch\n' | "$MEMTIDE" -i 2>&1 | tr -d '> \n')
is "$shown" '42stdin:1:undefinedvariable"nosuch"' "the prompt"
memtide run x.lua --csv - -q -- arguments for the script
is $status 0 "arguments after -- are the script's"
memtide x.lua
has "$err" "memtide run x.lua" "an experiment that is not run says how"

# ---- Ctrl-C
echo 'io.stdout:write("on"):flush() while true do end' >forever.lua
"$MEMTIDE" forever.lua >started.txt 2>err.txt &
job=$!
for _ in 1 2 3 4 5 6 7 8 9; do test -s started.txt || sleep 0.3; done
kill -INT $job
wait $job
is $? 130 "Ctrl-C ends a script"
is "$(cat err.txt)" "memtide: interrupted" "and says so"

finish
