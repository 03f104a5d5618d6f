# A sweep on several GPUs at once: emulated ones, two or three of them.
. tests/tap.sh
export MEMTIDE_CUDA=$(cd "$ROOT" && realpath "${BUILD:-build}/emulate/memtide_cuda.so")
export EMULATE_MEMORY=4294967296,1073741824
unset CUDA_VISIBLE_DEVICES
GPUS=cuda:0,cuda:1

# Every cell notes its process. FATES="1=crash 2=meet 3=wait": a worker's end; a cell that waits until two of them run;
# one that takes time.
cat >net.lua <<'E'
local mt = require "memtide"
local nn = mt.nn

local function append(path, text)
  local file <close> = assert(io.open(path, "a"))
  assert(file:write(text, "\n"))
end

local function count(path)
  local n = 0
  for _ in io.lines(path) do n = n + 1 end
  return n
end

local FATES = {crash = function() os.execute "kill -ABRT $PPID; sleep 60" end,
  wait = function() os.execute "sleep 0.5" end, meet = function()
  append("meeting.txt", "here")
  local wanted = count "meeting.txt"
  wanted = wanted + wanted % 2
  for _ = 1, 3000 do -- 30 s at most
    if count "meeting.txt" >= wanted then return end
    os.execute "sleep 0.01"
  end
end}

local met = {} -- to find a batch, a cell is built more than once

local function net(s)
  local fate = not met[s.n] and FATES[(os.getenv "FATES" or ""):match(s.n .. "=(%a+)")]
  append("begun.txt", ("%d %d"):format(s.n, io.open("/proc/self/stat"):read("n")))
  met[s.n] = true
  if fate then fate() end
  return nn.Sequential{nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)}
end

return mt.experiment{name = "net", model = net, input = {8}, classes = 4, batch = 4, steps = 2, warmup = 0,
  loss = nn.CrossEntropyLoss(), optimizer = mt.optim.SGD{lr = 0.1}, sweep = {{"n", {1, 2, 3, 4, 5, 6}}}}
E

columns() { # file, name...: these columns of every row
    file=$1
    shift
    awk -F, -v names="$*" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; n = split(names, name, " "); next }
        { line = ""; for (i = 1; i <= n; i++) line = line (i > 1 ? " " : "") $(at[name[i]]); print line }' "$file"
}
counted() { columns "$@" | sort | uniq -c | awk '{ $1 = $1; print }' | tr '\n' ';'; }
values() { columns "$@" | sort | tr '\n' ';'; }
sweep() { # options...: afresh, on both GPUs
    rm -f begun.txt meeting.txt x.csv
    memtide run net.lua --devices $GPUS --csv x.csv "$@"
}
ALL="1=meet 2=meet 3=meet 4=meet 5=meet 6=meet"
SLOW="1=wait 2=wait 3=wait 4=wait 5=wait 6=wait"

memtide devices
has "$out" "cuda:0    emulated CUDA device" "two GPUs are there"
has "$(printf '%s\n' "$out" | grep cuda:1)" "1.0 GiB, 1.0 GiB of them free" "each with its own memory"

# ---- both are used, each by a process that opens no other: its second stream would fail
FATES=$ALL EMULATE_FAIL=cudaStreamCreateWithFlags:2:46 sweep
is "$status $(counted x.csv status device)" "0 3 ok cuda:0;3 ok cuda:1;" "two GPUs, two cells at a time"
is "$(columns x.csv n | sort | tr '\n' ' ')" "1 2 3 4 5 6 " "every cell has one row"
columns x.csv n device | sort >where.txt
sort begun.txt | join - where.txt | cut -d' ' -f2,3 | sort -u >pairs.txt
is "$(wc -l <pairs.txt) $(cut -d' ' -f1 pairs.txt | sort -u | wc -l) $(cut -d' ' -f2 pairs.txt | sort -u | wc -l)" \
    "2 2 2" "each GPU has one process, for all of its cells"
rm -f all.csv meeting.txt
FATES=$ALL memtide run net.lua --devices all --csv all.csv
is "$status $(counted all.csv status device)" "0 3 ok cuda:0;3 ok cuda:1;" "--devices all finds both"

# ---- or one after the other, as an axis, by one process
rm -f axis.csv
memtide run net.lua --set device=$GPUS --csv axis.csv --in-process
is "$status $(counted axis.csv status device)" "0 6 ok cuda:0;6 ok cuda:1;" "one process can use both in turn"

# ---- cells are the same on any number of GPUs
memtide run net.lua --device cuda:0 --csv x.csv
has "$err" "6 of 6 cells were in x.csv already" "one GPU resumes what two have run"
sed -i '5,$d' x.csv
before=$(cat x.csv)
memtide run net.lua --devices $GPUS --csv x.csv
is "$(columns x.csv n | sort | tr '\n' ' ')" "1 2 3 4 5 6 " "two resume what was left: no cell twice"
is "$(head -4 x.csv)" "$before" "after the rows that were there"

# ---- what ends a worker ends one attempt, and its GPU is used again
FATES="1=crash 5=meet 6=meet" sweep
is "$status $(values x.csv n status)" "1 1 crashed;2 ok;3 ok;4 ok;5 ok;6 ok;" \
    "a cell that crashes has its row, others run"
is "$(columns x.csv n device | grep '^[56]' | cut -d' ' -f2 | sort | tr '\n' ' ')" "cuda:0 cuda:1 " \
    "the last two cells run on both GPUs at a time"
has "$(grep crashed x.csv)" "2nd attempt: crashed by SIGABRT while building" "it was tried twice"

# ---- a GPU that fails: what it fails at runs on the other, which is not done before, and it is used no more
FATES=$SLOW EMULATE_FAIL=cudaLaunchKernelEx:3:700:1 sweep
is "$status $(counted x.csv status device)" "0 6 ok cuda:0;" "an illegal address on one GPU costs no cell"
has "$err" "cuda:1 is used no more: 3 tasks in a row failed there, but not elsewhere" "it is told"
EMULATE_FAIL=cudaLaunchKernelEx:3:700 sweep
is "$status $(counted x.csv status)" "1 6 error;" "where both fail every cell has its row"
is "$(grep -c '2nd attempt: .*cudaErrorIllegalAddress' x.csv)" 6 "after a second attempt"
FATES=$SLOW EMULATE_FAIL=cudaStreamCreateWithFlags:1:46:1 sweep
is "$status $(test -e x.csv && echo rows)" "69 " "a GPU that is not to be had at all ends the sweep at once"
has "$err" "'cuda:1' is not available: a stream: " "and the message says which"

# ---- memory is that of the GPU on which a cell runs
EMULATE_MEMORY=40000,80000 FATES="1=meet 2=meet" sweep --set batch=max --set n=1,2 --steps 1
is "$status $(counted x.csv status device)" "0 1 ok cuda:0;1 ok cuda:1;" "the largest batch of each GPU"
twice='{ b[NR] = $2 } END { print (b[2] > 1.8 * b[1] && b[2] < 2.3 * b[1]) }'
is "$(columns x.csv device batch | sort | awk "$twice")" 1 "twice as large where there is twice the memory"
EMULATE_MEMORY=4000,4000000 FATES="1=meet" sweep --set n=1 --set batch=40,80,160,320 --try-oom
is "$(columns x.csv device status | grep -c 'cuda:0 oom')" 1 "out of memory on a small GPU"
is "$(columns x.csv device status | grep cuda:1 | sort -u)" "cuda:1 ok" "says nothing of a larger one"
finish
