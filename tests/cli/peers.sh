# The PyTorch side of the comparisons: its rows are memtide's, and compare sets the two side by side. What needs PyTorch
# is done where a python3 has it.
. tests/tap.sh
PEERS=$ROOT/experiments/peers
export PYTHONDONTWRITEBYTECODE=1

# ---- gpu-check
gpu() { (cd "$ROOT" && BUILD="${BUILD:-build}" sh tests/gpu.sh "$@") >gpu.txt 2>&1; }
DEVICE=cuda:99 gpu
is $? 77 "gpu-check without a GPU is skipped"
has "$(cat gpu.txt)" "SKIP: memtide: device 'cuda:99'" "and says why"
gpu --part nonsense
is $? 2 "a part that there is not"
has "$(cat gpu.txt)" "no part 'nonsense'" "is named"
OUT=$WORK DEVICE=cpu PARTS="plugin nonsense" gpu
is $? 1 "a part that fails"
has "$(cat gpu.txt)" "plugin     SKIP" "does not stop the others, and a line tells of each"
has "$(cat summary.txt)" "nonsense   FAIL" "in the summary, too"
has "$(tar -tzf results.tgz)" "./summary.txt" "and all results are in one file"
OUT='' DEVICE=cpu PARTS=devices gpu
is "$? $(grep -c '^devices    PASS .* s  cpu ' gpu.txt)" "0 1" "none that fails, and what device it is"
for part in plugin memcheck describe tune; do
    DEVICE=cpu gpu --part $part
    is "$? $(cat gpu.txt)" "77 of GPUs only" "$part: none on the CPU"
done
DEVICE=cuda:99 gpu --part devices
is $? 1 "a device that is not listed"
if [ -x "$ROOT/${BUILD:-build}/tests/cuda/t_linear" ] && [ -e "$ROOT/${BUILD:-build}/memtide_cuda.so" ]; then
    gpu --pack "$WORK/carry"
    is $? 0 "what it runs in one folder"
    BUILD=$WORK/carry DEVICE=cpu PARTS=devices gpu
    has "$(cat gpu.txt)" "devices    PASS" "runs from there"
    has "$(cat carry/gpu/log.txt)" "cuda:h200" "with the plugin and the descriptions"
fi

if ! command -v python3 >/dev/null; then
    count=$((count + 1))
    echo "ok $count - compare and pytorch.py # SKIP no python3"
    finish
fi

# ---- columns, networks
cat >axis.lua <<'END2'
local mt = require "memtide"
return mt.experiment{name = "axis", input = {4},
  model = function(s) return s.engine == "a" and mt.nn.Linear(4, 2) end, loss = mt.nn.CrossEntropyLoss(),
  sweep = {{"engine", {"a"}}}}
END2
memtide predict axis.lua --csv axis.csv
is "$(python3 "$PEERS/pytorch.py" --header)" "$(sed -n 1p axis.csv)" "the header is memtide's with an axis engine"
memtide predict "$ROOT/experiments/peers.lua" --csv predicted.csv
is "$(sed -n '1!p' predicted.csv | cut -d, -f5 | uniq | tr '\n' ' ')" \
    "$(PYTHONPATH=$PEERS python3 -c 'from networks import NETWORKS; print(*NETWORKS)') " "the networks have equal names"

# ---- compare
cat >make.py <<'END2'
from rows import Writer, columns, read
header, rows = read("predicted.csv")
ours, theirs = Writer("ours.csv", columns()), Writer("theirs.csv", columns("engine"))
measured = [{**row, "status": "ok"} for row in rows]
mlp = next(row for row in measured if row["model"] == "mlp")
vgg = next(row for row in measured if row["model"] == "vgg16")
for repeat, ms in enumerate((1.0, 2.0, 4.0), 1):
    ours.append({**mlp, "repeat": repeat, "step_ms": ms, "peak_bytes": 2**20, "reserved_bytes": 2**20})
for engine, ms in ("eager", 6), ("compile", 3):
    theirs.append({**mlp, "engine": engine, "step_ms": ms, "peak_bytes": 2**22, "reserved_bytes": 2**21})
ours.append({**vgg, "status": "oom", "step_ms": 1})
theirs.append({**vgg, "engine": "eager", "step_ms": 1})
END2
PYTHONPATH=$PEERS python3 make.py
memtide compare ours.csv theirs.csv
is $status 0 "compare"
line() { echo "$out" | grep -F "$1" | tr -s ' '; }
is "$(line eager | grep mlp)" "mlp precision=fp32 eager 2 6 3.000 (1.500..6.000) 1.0 4.0 4.000 1.0 2.0 2.000" \
    "medians, ranges and ratios"
has "$(line compile)" " 1.500 (0.750..3.000) " "a line for each engine"
is "$(line vgg16)" "vgg16 precision=fp32 eager oom ok" "a status that is not ok in one of them"
memtide compare predicted.csv axis.csv
is $status 1 "nothing in common"

# ---- PyTorch itself
for python in python3 /usr/bin/python3 none; do
    "$python" -c 'import torch' 2>/dev/null && break
done
if [ $python = none ]; then
    count=$((count + 1))
    echo "ok $count - pytorch.py # SKIP no python3 here has torch"
    finish
fi
memtide run "$ROOT/experiments/peers.lua" --case mlp --set batch=4 --set precision=fp32,master_bf16 --steps 2 \
    --csv mt.csv
pytorch() {
    "$python" "$PEERS/pytorch.py" --like mt.csv --csv pt.csv --engines eager,cuda_graph --steps 2 --warmup 2 \
        --processes 1 2>pytorch.txt
}
pytorch
is $? 0 "pytorch.py"
value() { awk -F, -v name="$1" -v line="$2" '
    NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } NR == line { print $at }' "$3"; }
is "$(value status 2 pt.csv)" ok "a row"
is "$(value weights_bytes 2 pt.csv)" "$(value weights_bytes 2 mt.csv)" "of as many weights"
is "$(value status 3 pt.csv) $(value reason 3 pt.csv)" "skipped CUDA graphs on the CPU" "what it cannot do is skipped"
is "$(value reason 4 pt.csv)" "precision master_bf16 has no counterpart in PyTorch" "with a reason"
near=$(awk -v a="$(value loss_first 2 pt.csv)" -v b="$(value loss_first 2 mt.csv)" '
    BEGIN { print (a > 0.8 * b && b > 0.8 * a) }')
is "$near" 1 "both losses begin near log 10"
cp pt.csv before.csv
pytorch
is "$(cmp pt.csv before.csv && echo same)" same "a second run adds nothing"
memtide compare mt.csv pt.csv
is $status 0 "the two are compared"
has "$(echo "$out" | tr -s ' ')" "precision=fp32 false eager " "on their settings"
finish
