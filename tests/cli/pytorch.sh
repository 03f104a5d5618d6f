# framework = "pytorch": cells of it are predicted, also by run, and explained; what it cannot predict is refused by name.
. tests/tap.sh

cat >both.lua <<'LUA'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "both", input = {20}, classes = 10, loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{}, batch = 8,
  model = function() return nn.Sequential{nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)} end,
  sweep = {{"framework", {"memtide", "pytorch"}}}, steps = 3, warmup = 1,
}
LUA
value() { # COLUMN LINE FILE; the test's values hold no commas
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' "$3"
}

memtide run both.lua --csv both.csv
is "$status $(value status 2 both.csv) $(value status 3 both.csv)" "0 ok predicted" "a cell of PyTorch's step is not run"
is "$(value device 3 both.csv)" "pytorch:a100-80gb" "its device is a card"
is "$(value predicted_peak_bytes 3 both.csv)" "$(value max_memory_allocated 3 both.csv)" "its peak is PyTorch's"
sum=0
for part in weights gradients optimizer activations activation_gradients input workspace other; do
    sum=$((sum + $(value ${part}_bytes 3 both.csv)))
done
is "$sum" "$(value max_memory_allocated 3 both.csv)" "the categories sum to it"
is "$(value max_memory_allocated 2 both.csv)" "" "a cell of memtide's step has none"
memtide run both.lua --csv both.csv
has "$err" "2 of 2 cells were in both.csv already" "it is settled"
memtide verify both.csv
is "$status" 0 "and its row is sound"

memtide predict both.lua --set framework=pytorch --memory 1MiB --csv small.csv
is "$(value status 2 small.csv)" "skipped" "what a card's memory does not hold is skipped"
memtide dump both.lua --set framework=pytorch
has "$out" "= step 3" "a dump is the trace of three steps"
is "$(echo "$out" | grep -c '^+')" "$(echo "$out" | grep '^+' | sort -u | wc -l)" "in which every allocation has a number"
memtide explain both.lua --set framework=pytorch
has "$out" "max_memory_allocated $(value max_memory_allocated 3 both.csv)" "explain says the peak"
has "$out" "both.lua:5" "and which line made what is alive there"

fails() { # ARGS WANTED WHAT
    memtide $1
    is "$status" "${4:-1}" "$3"
    has "$out$err" "$2" "and is said"
}
fails "dump both.lua --set framework=pytorch --plan" "PyTorch's step has no plan" "a plan is refused" 2
fails "predict both.lua --device pytorch:a100-80g" 'did you mean "a100-80gb"?' "a card that there is not" 69
fails "predict both.lua --device pytorch:t4" 'framework = "memtide" does not run on pytorch:t4' "memtide's step on a card"
fails "predict both.lua --set framework=pytorch --set checkpoint=all" 'expected checkpoint = "none", "marked" or "sqrt"' \
    "another choice of checkpoints than PyTorch's"
fails "predict both.lua --set framework=pytorch --set precision=master_bf16" "master_bf16" "a precision that it has not"
fails "predict both.lua --set framework=pytorch --set pytorch=fuzed=true" "there is no option fuzed" "an unknown option" 2
for given in 0 1.5 x -1; do
    fails "predict both.lua --set framework=pytorch --set pytorch=resident=$given" "--set: pytorch: resident: expected the bytes of at most 8 tensors" \
        "resident=$given" 2
done
fails "predict both.lua --set framework=pytorch --set pytorch=alloc_conf=x:1" "expandable_segments" \
    "an unknown key of the allocator" 2
finish
