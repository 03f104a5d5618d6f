# What a profiler is told by NVTX: a range for each op, named by the op and its layer, whether it is run at once or recorded; one
# for each replay of a recorded step; one for updates that were queued.
. tests/tap.sh
export MEMTIDE_CUDA=$(cd "$ROOT" && realpath "${BUILD:-build}/emulate/memtide_cuda.so") EMULATE_RANGES="$WORK/ranges.txt"
unset CUDA_VISIBLE_DEVICES

cat >net.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
local body = nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU()}
return mt.experiment{name = "ranges", model = nn.Sequential{body, nn.Flatten(), nn.Linear(8 * 36, 10)}, input = {3, 8, 8},
  classes = 10, batch = 2, warmup = 0, loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam{lr = 1e-3}}
E

run() { # options
    rm -f ranges.txt x.csv
    memtide run net.lua --device cuda:0 --csv x.csv --in-process --quiet "$@"
    [ "$status" = 0 ] || echo "# $out$err"
}

memtide dump net.lua --device cuda:0
printf '%s\n' "$out" | sed -n 's/^ *[0-9]\{1,\} \([a-z0-9_]*\) \([^:]*\): .*/\1 \2/p' | sed 's/ \.$//' | grep -v '^view ' >ops.txt
has "$(cat ops.txt)" "conv2d_dw 0.0" "the program has an op of a layer within another one"
is "$(sed -n '$p' ops.txt)" "adam 2.bias" "and ends with an update"

run --steps 1 --set graph=false
is "$(cat ranges.txt)" "$(echo "domain memtide"; cat ops.txt; echo "adam queued")" "a range for each op of the program, in its order"

run --steps 4
is "$(cat ranges.txt)" "$(echo "domain memtide"; for k in 1 2; do cat ops.txt; echo "adam queued"; done; echo "recorded step
recorded step
recorded step")" "a step that is run, one that is recorded, and its replays"

unset EMULATE_RANGES
run --steps 1
is "$status$(ls ranges.txt 2>&1 | grep -c 'No such file')" 01 "without a profiler there are none"
finish
