# memtide profile: the table, JSON, CSV, what cannot be profiled.
. tests/tap.sh

cat >timed.lua <<'END'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "timed", input = {64}, classes = 10, batch = 8,
  model = nn.Sequential{nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)},
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1}, steps = 3, warmup = 1,
}
END
memtide profile timed.lua
is $status 0 "a profile"
has "$out" "roof: " "says the machine's roof"
has "$out" "all ops " "the sum of the ops"
has "$out" "the step " "and the step beside it"
memtide profile timed.lua --ops 1
has "$out" "faster ops; --csv and --json have all" "--ops shortens the list"
memtide profile timed.lua --json
is "$status $(echo "$out" | wc -l)" "0 1" "one JSON object"
has "$out" '"ops":[{' "with the ops"
has "$out" '"step_seconds":' "and the step"
memtide profile timed.lua --csv ops.csv
has "$(head -n 1 ops.csv)" "experiment,case,op,kind,layer,path,phase" "CSV has an op a line"
memtide profile timed.lua --set framework=pytorch
is "$status $err" "2 memtide: profile: PyTorch's step is predicted and never run: expected --set framework=memtide" \
    "PyTorch's step has no times"
memtide profile "$ROOT/experiments/distill.lua"
is $status 2 "neither have trainings"
has "$err" "profile: not offered with trainings" "which it says"

finish
