# The cards of PyTorch's step: predict and fit on them, and memtide calibrate.
. tests/tap.sh

cat >net.lua <<'LUA'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{name = "net", input = {64}, classes = 8, loss = nn.CrossEntropyLoss(), steps = 1, warmup = 0,
  model = nn.Sequential{nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)}, batch = 128,
  cases = {{case = "narrow"}, {case = "long", batch = 4096}}}
LUA
value() { # COLUMN LINE FILE
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' "$3"
}

# ---- predictions
memtide predict net.lua --device pytorch:a100-40gb -q
is $status 0 "predict on a card"
has "$out" "predicted" "... says what it will need"
memtide predict net.lua --device pytorch:a100-40gb -q --memory 1440MiB
has "$out" "needs 1521483776 bytes, 11534336 more than the 1509949440 of --memory" "--memory counts the context, where it is known"
memtide predict net.lua --device pytorch:t4 -q --memory 1440MiB
is "$(echo "$out" | grep -c needs)" 0 "... and nothing where it is not"
memtide predict net.lua --device pytorch:rtx4091
is $status 69 "a card that is not known"
has "$err" 'there is no card "rtx4091"; did you mean "rtx4090"?' "... is told"
memtide explain net.lua -q --device pytorch:t4
has "$out" "device_bytes         from " "explain gives a range where the context is not known"
has "$out" "see memtide calibrate" "... and says what would narrow it"
has "$out" "time                 at least " "... and the least time"
memtide run net.lua --dry-run --device pytorch:t4
has "$out" ">" "a dry run has it, too"
has "$out" "2 cells, 0 of them to run" "... and that PyTorch's step is never run"

# ---- fit
memtide fit net.lua --device pytorch:t4,a100-40gb --memory 1GiB
is $status 0 "fit on two cards"
has "$out" "narrow (Sequential): the largest batch of PyTorch's step" "... a table for the case"
has "$out" "t4: batch 128 is tight: " "... and what would make it fit"
has "$out" "By bytes saved for each percent of time, what costs none first:" "... in that order"
has "$out" "Launches are not in it" "... and what the time lacks"
is "$(echo "$out" | sed -n 's/^fused optimizer .* \(-[0-9.]*\) %.*/less/p' | head -n 1)" less "... with the time beside it"
memtide fit net.lua --device pytorch:t4,h200 --csv fit.csv --json -q
is "$(echo "$out" | grep -c '"card":"h200"')" "$(grep -c ',h200,' fit.csv)" "JSON and CSV have the same lines"
is "$(head -n 1 fit.csv)" "case,card,technique,batch,accumulate,max_memory_allocated,max_memory_reserved,device_bytes,device_bytes_least,device_bytes_most,room,saved_bytes,floor_seconds,time_percent,verdict,gives_back,largest_batch,tight_batch" \
    "the columns"
is "$(value technique 2 fit.csv) $(value card 2 fit.csv) $(value room 2 fit.csv)" "as it is t4 $((14913 << 20))" "the first line"
is "$(value verdict 2 fit.csv) $(value saved_bytes 2 fit.csv)" "fits 0" "... fits"
memtide fit net.lua --set framework=pytorch --csv - -q
is "$(echo "$out" | cut -d, -f2 | sort -u | grep -vc '^card$')" 12 "without a card all are answered for"
memtide fit net.lua --device pytorch:t4,t5
is $status 69 "an unknown card in a list"
memtide fit net.lua --set framework=memtide,pytorch
is $status 2 "both frameworks at once"
has "$err" "fit: the script sweeps framework: choose one of them" "... are told"
memtide fit net.lua --device pytorch:t4 --set checkpoint=all
is $status 65 "what PyTorch's step does not have"
has "$err" 'framework = "pytorch": expected checkpoint = "none", "marked" or "sqrt"' "... is told"

# ---- calibrate
memtide calibrate
is "$status $out" "0 nothing is calibrated: memtide calibrate SCRIPT --device pytorch:NAME --used SIZE" "nothing is stored"
memtide calibrate net.lua --device pytorch:t4 --used 330MiB --case long --pytorch 2.6.0+cu124
is $status 0 "calibrate"
line=$out
reserved=$(echo "$line" | sed 's/.* less \([0-9]*\) that.*/\1/')
is "$line" "t4, PyTorch 2.6.0+cu124: context $(((330 << 20) - reserved)) bytes ($(awk "BEGIN {printf \"%.1f\", 330 - $reserved / 1048576}") MiB): $((330 << 20)) used, less $reserved that PyTorch is predicted to reserve" \
    "... says the constant"
memtide calibrate
has "$out" "2.6.0+cu124  $(((330 << 20) - reserved))" "... and stores it"
has "$out" "net, long" "... with its source"
memtide explain net.lua -q --device pytorch:t4 --case long
has "$out" "device_bytes         $((330 << 20)): reserved, and $(((330 << 20) - reserved)) of the context (calibrated with PyTorch 2.6.0+cu124 on " \
    "predictions have it"
memtide predict net.lua --device pytorch:t4 -q --memory 330MiB --case long
is "$(echo "$out" | grep -c needs)" 0 "so much is enough"
memtide predict net.lua --device pytorch:t4 -q --memory $(((330 << 20) - 1)) --case long
has "$out" "needs $((330 << 20)) bytes, 1 more than" "... and a byte less is not"
memtide calibrate net.lua --device pytorch:t4 --used 30MiB --case long
is $status 2 "used below what is reserved"
has "$err" "calibrate: --used: expected more than the $reserved bytes" "... is told"
memtide calibrate net.lua --device pytorch:t4 --used 15GiB
is $status 2 "more than the card has"
has "$err" "calibrate: --used: expected at most the $((14913 << 20)) bytes" "... is told"
memtide calibrate net.lua --device pytorch:t4 --used 5GiB --case long
is $status 0 "a context that is larger than any known"
has "$err" "that is more than any context that is known (1.5 GiB)" "... is stored with a doubt"
refused() { # part of the message, arguments
    part=$1
    shift
    memtide calibrate "$@"
    is $status 2 "refused: $*"
    has "$err" "$part" "... and why"
}
refused "--used is missing" net.lua --device pytorch:t4
refused "expected --device pytorch:NAME, with NAME one of t4, " net.lua --used 1GiB
refused "expected --device pytorch:NAME" net.lua --used 1GiB --device cpu
refused "--used: expected a size" net.lua --used much --device pytorch:t4
refused "--pytorch: expected a version" net.lua --used 1GiB --device pytorch:t4 --pytorch "2 6"
refused "--used: expected a script or --snapshot beside it" --used 1GiB
refused "expected a script or --snapshot, found both" net.lua --snapshot s.pickle --used 1GiB --device pytorch:t4

# ---- from a recording: what it had reserved at its end
cat >write.lua <<'LUA'
local pickle = dofile(arg[1] .. "/tests/pickle.lua")
local MIB = 1 << 20
local segment = {device = 0, address = 1 << 40, total_size = 20 * MIB, stream = 0, segment_type = "large", blocks = {
  {size = 5 * MIB, requested_size = 5 * MIB, state = "active_allocated", frames = {}}}}
local file = assert(io.open("s.pickle", "wb"))
file:write(pickle.dump{segments = {segment}, device_traces = {{{action = "alloc", addr = 1 << 40, size = 5 * MIB, stream = 0,
  time_us = 1, frames = {{name = "f", filename = "a.py", line = 1}}}}}, allocator_settings = pickle.dict{}})
file:close()
LUA
memtide write.lua "$ROOT"
memtide calibrate --snapshot s.pickle --device pytorch:l4 --used 420MiB
is "$status $out" "0 l4, PyTorch 2.15: context $((400 << 20)) bytes (400.0 MiB): $((420 << 20)) used, less $((20 << 20)) that PyTorch had reserved when it was recorded" \
    "from a recording"
memtide calibrate --snapshot nowhere.pickle --device pytorch:l4 --used 420MiB
is $status 66 "a recording that is not there"
memtide calibrate
is "$(echo "$out" | grep -c '^l4 *2.15 ')" 1 "... is listed, too"

# ---- a file that is damaged
echo "t4 2.15" >>"$XDG_CACHE_HOME/memtide/calibration.txt"
memtide predict net.lua --device pytorch:h100 -q
is $status 1 "a damaged file"
has "$out$err" "calibration.txt:4: expected card, version, bytes, date and source between tabs" "... is named with its line"
memtide completion bash
has "$out" "calibrate) words=" "completion"
finish
