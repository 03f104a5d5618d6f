# What the process took on the CPU, beside what the ledger counted.
. tests/tap.sh
cat >two.lua <<'END2'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{
  name = "two", input = {512}, classes = 10, model = nn.Sequential{nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10)},
  loss = nn.CrossEntropyLoss(), optimizer = mt.optim.SGD{lr = 0.01}, steps = 1, warmup = 0,
  cases = {{case = "large", batch = 8192}, {case = "small", batch = 8}, {case = "PyTorch's", framework = "pytorch", batch = 8}},
}
END2
value() {
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' two.csv
}
memtide run two.lua
is $status 0 "two cells in one worker"
if (echo 5 >/proc/self/clear_refs) 2>/dev/null; then
    for line in 2 3; do
        used=$(value device_used_bytes $line) reserved=$(value reserved_bytes $line)
        [ "$used" -gt 1000000 ]
        result $? "row $line: the process took $used bytes"
        is "$(value untracked_bytes $line)" $((used - reserved)) "... less the reserved ones"
    done
    [ "$(value device_used_bytes 2)" -ge "$(value peak_bytes 2)" ]
    result $? "the large cell: at least what the step used"
    [ "$(value device_used_bytes 3)" -lt "$(value peak_bytes 2)" ]
    result $? "the small cell after it: not the high-water mark of the large one"
else
    is "$(value device_used_bytes 2)$(value untracked_bytes 2)" "" "empty: the kernel does not set the mark back"
fi
is "$(value device_used_bytes 4)" "" "nothing of a cell that is only predicted"
memtide verify two.csv two.lua
is $status 0 "memtide verify agrees"
finish
