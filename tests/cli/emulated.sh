# A precision that the processor has no instructions for: the row, the tables and the verdicts say so.
. tests/tap.sh

cat >mixed.lua <<'LUA'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "mixed", input = {64}, classes = 8, batch = 8, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  model = nn.Sequential{nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)},
  cases = {{case = "base"}, {case = "mixed", precision = "amp_bf16"}, {case = "half", precision = "fp16"}},
  claims = {{claim = "mixed needs another time", of = "step_ms", ratio = {"mixed", "base"}, expect = 1000},
    {claim = "as much as itself", of = "peak_bytes", equal = {"base", "base"}}},
  steps = 12, warmup = 1,
}
LUA
value() { # COLUMN LINE FILE; the test's values hold no commas
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' "$3"
}
three() { echo "$(value emulated 2 "$1"),$(value emulated 3 "$1"),$(value emulated 4 "$1")"; }

# ---- without bf16
export ONEDNN_MAX_CPU_ISA=AVX2
memtide run mixed.lua
is "$status $(three mixed.csv)" "5 ,bf16,fp16" "the row says it, where it is"
is "$(echo "$out" | sed -n '1p' | grep -c emulated)" 1 "the table has a column of it"
has "$(echo "$out" | grep '^mixed  ')" "  bf16" "with the type"
is "$(echo "$err" | grep -c '^\[2/3\] mixed: ok, .*/step, bf16 is emulated')" 1 "so does the line for the cell"
has "$out" "REFUTED (bf16 is emulated on this processor)" "and the verdict"
is "$(echo "$out" | grep -c 'hardware$')" 1 "which depends on the hardware; the other does not"
memtide run mixed.lua --json -q
is "$status $(echo "$out" | grep -c '"emulated":"bf16"')" "5 2" "rows that are read back say it, and so do verdicts"
has "$out" '"verdict":"REFUTED","claimed_low":1000,' "whose word stays as it is"
has "$out" '"hardware":false' "or depends on nothing"
memtide run mixed.lua --dry-run
has "$(echo "$out" | grep '^mixed')" ", bf16 is emulated" "the dry run, where it tells times"
memtide predict mixed.lua --csv predicted.csv -q
is "$(three predicted.csv)" ",bf16,fp16" "predictions"
memtide fit mixed.lua --memory 1MiB --set precision=fp32,bf16 --case base
is "$(echo "$out" | grep -c '^bf16 .*bf16 is emulated') $(echo "$out" | grep -c '^fp32 .*emulated')" \
    "$(echo "$out" | grep -c '^bf16 ') 0" "fit, beside its times"
memtide fit mixed.lua --memory 1MiB --set precision=bf16 --case base --json
is "$(echo "$out" | grep -vc '"emulated":"bf16"')" 0 "in JSON, too"
memtide watch mixed.csv --once
is "$(echo "$out" | sed -n '1p' | grep -c emulated)" 1 "watch"

# ---- as the processor is
unset ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA
case $(cat /proc/cpuinfo) in *avx512_bf16*) expected= ;; *) expected=bf16 ;; esac
memtide predict mixed.lua --csv own.csv -q
is "$(three own.csv)" ",$expected,fp16" "this machine's own"
sed 's/,bf16,0.1/,,0.1/' mixed.csv >other.csv
cp mixed.samples.csv other.samples.csv
memtide compare mixed.csv other.csv
has "$out" "A emulated" "compare tells what only one of two files has"

finish
