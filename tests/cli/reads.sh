# An axis that nobody reads, and a setting that is not there, in every command that builds cells: told once, with the
# script's exit status, before anything is computed.
. tests/tap.sh

net() { # model's expression, sweep
    cat >net.lua <<END
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{
  name = "net", input = {8}, classes = 4, batch = 4, steps = 2, warmup = 1,
  model = $1,
  loss = nn.CrossEntropyLoss(), optimizer = mt.optim.SGD{lr = 0.1},
  sweep = {$2},
}
END
}

unread='sweep[2]: nothing reads "depth", in none of 6 cells'
net 'function(s) return nn.Linear(8, s.width) end' '{"width", {4, 5, 6}}, {"depth", {1, 2}}'
for command in run predict "run --in-process" "predict --jobs 2" "run --dry-run" status cells explain dump fit; do
    # shellcheck disable=SC2086
    memtide $command net.lua $([ "$command" = fit ] && echo --memory 1MiB)
    is "$status" 65 "$command: an axis that nobody reads is the script's mistake"
    has "$err" "memtide: net.lua:3: $unread" "$command: which is told with the line"
done
is "$(cat net.csv 2>/dev/null | grep -c ,ok,)" 0 "nothing was run"
is "$(ls ./*.live 2>/dev/null | wc -l)" 0 "and no sweep seems to run"

net 'nn.Linear(8, 4)' '{"batch_size", {1, 2}}, {"dtype", {"fp32", "bf16"}}'
memtide predict net.lua
is "$status" 65 "beside a plain layer it is found at once"
has "$err" 'net.lua:3: sweep[1]: nothing reads "batch_size"' "with the name"
has "$err" 'did you mean "batch"?' "and the setting that is meant"

net 'function(s) return nn.Linear(8, s.widht) end' '{"width", {4, 5}}'
memtide run net.lua
is "$status" 65 "a name that is not there is a mistake"
has "$err" 'net.lua:5: settings: there is no "widht" (did you mean "width"?)' "with the nearest one"

net 'function(s) return nn.Linear(8, s.word) end' '{"word", {4, 5}}'
memtide predict net.lua -q --csv word.csv
is "$status $(wc -l <word.csv)" "0 3" "a name of the script's own may be near a setting's (world), since it is read"
net 'function(s) return nn.Linear(8, 4) end' '{"wrold", {1, 2}}'
memtide predict net.lua
is "$status" 65 "one that is not read is a mistake"
has "$err" 'nothing reads "wrold", in none of 2 cells; did you mean "world"?' "with the setting that is meant"

# Each of three workers looks for whoever reads it.
net 'function(s) return nn.Linear(8, s.width == 6 and s.depth + 3 or s.width) end' '{"width", {4, 5, 6}}, {"depth", {1, 2}}'
memtide predict net.lua -q --csv some.csv --jobs 3
is "$status $(wc -l <some.csv)" "0 7" "an axis that some cells read is one"
memtide predict net.lua -q --csv some.csv --jobs 3
is "$status $(wc -l <some.csv)" "0 7" "also where all have their rows"
memtide run net.lua -q --csv one.csv --case width=4
is "$status $(grep -c ',ok,' one.csv)" "0 2" "and where the cells that read it are not among those that run"
memtide run net.lua -q --csv set.csv --set width=4 --set depth=1
is "$status $(wc -l <set.csv)" "0 2" "or where the command line leaves none of these"
finish
