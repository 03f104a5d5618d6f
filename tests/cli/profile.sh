# memtide profile: the tables, CSV and JSON of the same ops; an emulated GPU; what cannot be run.
. tests/tap.sh

cat >net.lua <<'LUA'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local blocks = {}
for i = 1, 3 do blocks[i] = nn.Sequential{nn.Linear(32, 32), nn.GELU()} end
return mt.experiment{
  name = "net", input = {32}, classes = 8, batch = 16, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  model = nn.Sequential{nn.Sequential(blocks), nn.Linear(32, 8)},
  cases = {{case = "base"}, {case = "four", accumulate = 4}}, steps = 3, warmup = 1,
}
LUA
memtide profile net.lua
is $status 0 "a profile"
is "$err" "memtide: the first of 2 cells: base; choose another with --case or --set" "of the first cell"
has "$out" "net, base, batch 16, fp32, on " "which it names"
has "$out" ", 1 thread" "with the threads that run has"
has "$out" "measured now), " "the roof was measured"
has "$out" "0.0-2 x 3" "equal blocks are one line"
has "$out" "all ops " "the sum of the ops"
has "$out" "the step " "beside the step"
lines=$(echo "$out" | wc -l)
memtide profile net.lua -q --depth 1 --ops 2
has "$out" " faster ops; --csv and --json have all" "fewer ops"
is "$(echo "$out" | grep -c GELU)" 0 "fewer levels"

memtide profile net.lua -q --case four --steps 2 --perfetto trace.json
is "$status$err" 0 "a trace for Perfetto beside the table"
has "$(cat trace.json)" '"traceEvents"' "... is one"
is "$(grep -c 'not timed' trace.json)" 0 "... of measured times"
memtide profile net.lua -q --case four --csv ops.csv --json --steps 2
is $status 0 "CSV and JSON"
is "$(head -n 1 ops.csv)" "experiment,case,op,kind,layer,path,phase,recomputed,times,seconds,seconds_min,seconds_p90,flops,bytes,\
flops_per_s,bytes_per_s,roof_share,bound" "columns"
if command -v python3 >/dev/null; then
    is "$(python3 - <<'PY'
import csv, json
t = json.load(open("out.txt"))
rows = list(csv.DictReader(open("ops.csv")))
assert len(rows) == len(t["ops"]) > 10
for row, op in zip(rows, t["ops"]):
    for name in "op", "times", "seconds", "seconds_min", "seconds_p90", "flops", "bytes":
        assert type(op[name]) in (int, float) and abs(float(row[name]) - op[name]) <= 1e-12 + 1e-6 * abs(op[name]), (name, row, op)
    assert row["recomputed"] == str(op["recomputed"]).lower() and type(op["recomputed"]) is bool
assert {op["times"] for op in t["ops"]} == {1, 4}
for name in "seconds", "flops", "bytes":
    a, b = (sum(one[name] for one in t[which]) for which in ("ops", "layers"))
    assert abs(a - b) <= 1e-6 * a, (name, a, b)
assert abs(sum(op["seconds"] for op in t["ops"]) - t["ops_seconds"]) < 1e-9
assert abs(sum(op["seconds"] * op.get("roof_share", 0) for op in t["ops"]) - t["roof_seconds"]) < 1e-9
assert t["timed_step_seconds"] > 0 and t["steps"] == 2 and t["batch"] == 16 and t["threads"] == 1 and t["step_seconds"] > 0
assert t["roof"]["flops_per_s"] > 0 and t["roof"]["bytes_per_s"] > 0
assert [one["path"] for one in t["layers"]][:3] == ["0.0.0", "0.0.1", "0.1.0"]
print("good")
PY
)" good "say the same, and their sums agree"
else
    skip "CSV and JSON say the same" "no python3"
fi
memtide profile net.lua -q --csv -
is "$(echo "$out" | sed -n '2p' | cut -d, -f1-4)" "net,base,0,linear" "CSV on standard output"

fails() { # status, message, what, words ...
    expected=$1 message=$2 what=$3
    shift 3
    memtide "$@"
    is $status "$expected" "$what"
    has "$err" "$message" "... is told"
}
fails 2 "profile: PyTorch's step is predicted and never run" "PyTorch's step" profile net.lua -q --set framework=pytorch
fails 69 "device 'cuda:nothing' is not available" "a device that is not there" profile net.lua -q --device cuda:nothing
fails 2 "both write to standard output" "two kinds of rows" profile net.lua --json --csv -
fails 2 "profile: not offered with trainings" "trainings" profile "$ROOT/experiments/distill.lua" -q
fails 66 "/nowhere/ops.csv" "no folder" profile net.lua -q --csv /nowhere/ops.csv

# ---- an emulated GPU: the same through the device's events
PLUGIN=$(cd "$ROOT" && realpath "${BUILD:-build}/emulate/memtide_cuda.so")
if [ -e "$PLUGIN" ]; then
    export MEMTIDE_CUDA=$PLUGIN
    memtide profile net.lua -q --device cuda:0 --steps 2
    is $status 0 "on an emulated GPU"
    has "$out" "on emulated CUDA device" "which it names"
    has "$out" "? GB/s (not measured)" "and whose memory nothing is known of"
    has "$out" "0.0-2 x 3" "layers and ops are as on the CPU"
    fails 69 "is described, not here" "a GPU that is only described" profile net.lua -q --device cuda:h200
else
    skip "an emulated GPU" "make emulated"
fi
finish
