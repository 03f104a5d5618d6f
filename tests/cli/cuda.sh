# Experiments on the CUDA device, on an emulated GPU: predicted and measured, recorded and not, out of memory, and lost.
. tests/tap.sh
export MEMTIDE_CUDA=$(cd "$ROOT" && realpath "${BUILD:-build}/emulate/memtide_cuda.so")
export EMULATE_LATE=1 # what is enqueued runs as late as CUDA allows

cat >net.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
local function net()
  return nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5),
    nn.Flatten(), nn.Linear(16 * 2 * 2, 10)}
end
return mt.experiment{name = "net", model = net, input = {3, 8, 8}, classes = 10, batch = 4, steps = 3, warmup = 1,
  loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam{lr = 1e-3},
  sweep = {{"precision", {"fp32", "amp_fp16", "master_bf16"}}, {"accumulate", {1, 3}}}}
E

# The columns that are named, of every row of a CSV file; `reason` and what follows it only where no reason is quoted.
columns() { # file, name...
    file=$1
    shift
    awk -F, -v names="$*" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; n = split(names, name, " "); next }
        { line = ""; for (i = 1; i <= n; i++) line = line " " $(at[name[i]]); print line }' "$file"
}

memtide run net.lua --csv cpu.csv
memtide run net.lua --device cuda:0 --csv gpu.csv
is $status 0 "an experiment runs"
is "$(columns gpu.csv status device_name | sort | uniq -c | tr -s ' ')" " 6 ok emulated CUDA device" "on the GPU"
is "$(sed 1d gpu.samples.csv | cut -d, -f14-17 | sort -u)" "1,1,20,power" \
    "its clocks, heat and throttle reasons are in the samples"
is "$(columns gpu.csv predicted_peak_bytes)" "$(columns gpu.csv peak_bytes)" "every prediction is what was measured"
is "$(columns gpu.csv reserved_bytes untracked_bytes | awk '$2 != 0')" "" "and nothing is held beside"
columns cpu.csv loss_last >cpu.txt
columns gpu.csv loss_last | paste -d' ' cpu.txt - >losses.txt
is "$(awk '{ d = $1 - $2; if (d * d < 1e-6 * $1 * $1) n++ } END { print n }' losses.txt)" 6 "the losses are the CPU's"

memtide run net.lua --device cuda:0 --set graph=false --csv plain.csv
is "$(columns plain.csv loss_first loss_last peak_bytes)" "$(columns gpu.csv loss_first loss_last peak_bytes)" \
    "a recorded step gives the same bits as one that is not"
for allocator in caching direct; do
    memtide run net.lua --device cuda:0 --set allocator=$allocator --csv $allocator.csv
    is "$(columns $allocator.csv loss_last)" "$(columns gpu.csv loss_last)" "the $allocator allocator, too"
    is "$(columns $allocator.csv predicted_peak_bytes)" "$(columns $allocator.csv peak_bytes)" "and is predicted"
done

# ---- sums that many blocks share: the norm of the gradients, and the gradient of one slope
cat >sums.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
local function net()
  return nn.Sequential{nn.Conv2d(3, 32, 3), nn.PReLU(), nn.Flatten(), nn.Linear(32 * 12 * 12, 10)}
end
return mt.experiment{name = "sums", model = net, input = {3, 14, 14}, classes = 10, batch = 8, steps = 3, warmup = 1,
  loss = nn.CrossEntropyLoss(), optimizer = mt.optim.SGD{lr = 0.1, clip_norm = 0.5},
  sweep = {{"precision", {"fp32", "amp_fp16"}}, {"accumulate", {1, 2}}}}
E
memtide run sums.lua --csv sums.cpu.csv
columns sums.cpu.csv loss_last >cpu.txt
memtide run sums.lua --device cuda:0 --csv sums.csv
is "$(columns sums.csv status | sort | uniq -c | tr -s ' ')" " 4 ok" "sums of many blocks run"
columns sums.csv loss_last | paste -d' ' cpu.txt - >losses.txt
is "$(awk '{ d = $1 - $2; if (d * d < 1e-6 * $1 * $1) n++ } END { print n }' losses.txt)" 4 "to the CPU's losses"
memtide dump sums.lua --device cuda:0
has "$(echo "$out" | grep 'grad_square 3.weight')" "workspace=8192" "with workspace in the update"
for allocator in planned caching direct; do
    memtide run sums.lua --device cuda:0 --set allocator=$allocator --set graph=false --csv sums.$allocator.csv
    is "$(columns sums.$allocator.csv predicted_peak_bytes)" "$(columns sums.$allocator.csv peak_bytes)" \
        "predicted with the $allocator allocator"
    is "$(columns sums.$allocator.csv loss_last)" "$(columns sums.csv loss_last)" "with the same bits"
done

# ---- without memory for a step's graph its cell fails alone; the next cells use what was prepared before
columns gpu.csv precision accumulate loss_last >gpu.txt
EMULATE_FAIL=cudaGraphInstantiate:2:2 memtide run net.lua --device cuda:0 --csv graph.csv
is "$(columns graph.csv status | grep -c oom)" 1 "no memory for a step's graph is a result, too"
has "$(grep oom graph.csv)" "making a graph of the step" "that says so"
is "$(columns graph.csv precision accumulate loss_last | grep -cxFf gpu.txt)" 5 "the others have their losses"
EMULATE_FAIL=cudaGraphInstantiate:2:801 memtide run net.lua --in-process --device cuda:0 --csv refused.csv
is $status 69 "a step that cannot be made a graph ends the run"
has "$(tail -1 refused.csv)" "making a graph of the step: cudaErrorNotSupported" "after a row that says so"

memory=$(columns gpu.csv peak_bytes | sort -n | sed -n 3p | tr -d ' ') # enough for three of the six
EMULATE_MEMORY=$memory memtide run net.lua --device cuda:0 --csv small.csv --try-oom
is $status 0 "out of memory is a result"
is "$(columns small.csv status | sort | uniq -c | tr -s ' \n' ' ')" " 3 ok 3 oom " "and other cells run"
has "$(cat small.csv)" "in one piece: $memory of its $memory bytes are free" "the row says what was free"

EMULATE_FAIL=cudaLaunchKernelEx:40:700 memtide run net.lua --device cuda:0 --csv lost.csv --in-process
is $status 69 "an illegal address ends the run of this process"
has "$(tail -1 lost.csv)" "cudaErrorIllegalAddress (an illegal memory access was encountered)" \
    "after a row that says so"
is "$(columns lost.csv status | grep -c error)" 1 "since no later cell could trust the GPU"

EMULATE_FAIL=cudaLaunchKernelEx:5:700 memtide run net.lua --device cuda:0 --csv each.csv
is "$status $(columns each.csv status | grep -c error)" "1 6" "worker processes are replaced after it"
is "$(grep -c '2nd attempt: .*cudaErrorIllegalAddress' each.csv)" 6 "and every cell is tried twice"

memtide run net.lua --devices all --csv all.csv
is "$status $(columns all.csv status device | sort | uniq -c | tr -s ' ')" "0  6 ok cuda:0" \
    "--devices all finds the GPU"
memtide run net.lua --devices cuda:0,cuda:0 --csv all.csv
has "$err" "6 of 6 cells were in all.csv already" "two workers resume what one has done"

out=$(cd "$ROOT" && PARTS_DEVICE=cuda:0 "$MEMTIDE" tests/lua/t_parts.lua 2>&1)
is "$(echo "$out" | grep -v '^ok ')" "1..$(echo "$out" | grep -c '^ok ')" "a step in parts is what it is on the CPU"
out=$(cd "$ROOT" && TEST_DEVICE=cuda:0 "$MEMTIDE" tests/lua/t_paged.lua 2>&1)
is "$(echo "$out" | grep -v '^ok ')" "1..$(echo "$out" | grep -c '^ok ')" "paged states are what they are on the CPU"

finish
