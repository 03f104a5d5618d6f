# The list of devices: what is here, what is missing and why, and GPUs that are only described.
. tests/tap.sh
PLUGIN=$(cd "$ROOT" && realpath "${BUILD:-build}/emulate/memtide_cuda.so")

mkdir -p plugin/devices
cp "$PLUGIN" plugin
cp "$ROOT"/kernels/cuda/devices/h200.json plugin/devices
export MEMTIDE_CUDA=$PWD/plugin/memtide_cuda.so

memtide devices
is $status 0 "devices"
has "$out" "cuda:0    emulated CUDA device, compute capability 9.0, 4 multiprocessors, driver emulated, CUDA 13.0" \
    "a GPU"
has "$out" "4.0 GiB, 4.0 GiB of them free" "with its memory"
has "$out" "cuda:h200 planning only, NVIDIA H200, compute capability 9.0, 132 multiprocessors" "a described GPU"
is "$(echo "$out" | grep -c .)" 3 "nothing else"

# ---- descriptions
describe() { sed "$1" "$ROOT"/kernels/cuda/devices/h200.json >plugin/devices/other.json; }
refused() { # part of the reason, what
    memtide devices
    has "$out" "cuda:other not available: $HERE/plugin/devices/other.json: $1" "$2"
}
HERE=$PWD
describe 's/H200/X100/; s/: 900/: 700/'
memtide devices
has "$out" "cuda:other not available: NVIDIA X100 has compute capability 7.0: expected 7.5 or later" \
    "one that is too old"
describe '/deviceVer/d'
refused 'expected "deviceVer": a whole number from 1 to 2147483647, found nothing' "one without a number"
describe 's/"totalGlobalMem": /&-/'
refused 'expected "totalGlobalMem": a whole number from 1 to 1152921504606846976, found -150' "a number below zero"
describe 's/"multiProcessorCount": [0-9]*/"multiProcessorCount": 4294967296/'
refused 'expected "multiProcessorCount": a whole number from 1 to 2147483647, found 4294967296' "one beyond an int"
describe 's/"deviceVer": 900/"deviceVer": 21474836480/'
refused 'expected "deviceVer": a whole number from 1 to 2147483647, found 21474836480' "which would be another GPU's"
describe "s/NVIDIA H200/NVIDIA $(printf '\033')[31mH200/"
refused 'expected "deviceName": a text of 1 to 95 bytes, found "NVIDIA \x1b[31mH200' "a name with an escape of terminals"
describe 's/"NVIDIA H200"/7/'
refused 'expected "deviceName": a text of 1 to 95 bytes, found 7' "a number for a text"
: >plugin/devices/other.json
refused 'expected "deviceName"' "an empty file"
head -c 70000 /dev/zero >plugin/devices/other.json
refused 'expected a text of less than 65536 bytes' "and one that is no text"
rm plugin/devices/other.json

memtide devices --describe cuda:h200
is $status 69 "--describe takes a GPU that is here"
has "$err" "only a GPU that is here can be described" "as it says"
memtide devices --describe cuda:other
is $status 69 "--describe of a GPU that nobody knows"
has "$err" "there is no description $HERE/plugin/devices/other.json" "names the file"
memtide devices --describe "cuda:a b"
is $status 65 "and of no name at all"

# ---- types that are emulated
describe 's/: 900/: 750/'
memtide devices
is "$(echo "$out" | grep -c 'emulated in fp32')" 2 "the CPU and one GPU emulate a type"
has "$(echo "$out" | grep cuda:other)" ", bf16 emulated in fp32" "compute capability 7.5 has no bf16"
rm plugin/devices/other.json
cat >emulated.lua <<'E'
for i = 1, #arg do print(arg[i], table.concat(require "memtide.core".device(arg[i]):info().emulated, " ")) end
E
memtide emulated.lua cuda:0 cuda:h200
is "$(echo "$out" | tr -d '\t' | tr '\n' ' ')" "cuda:0 cuda:h200 " "scripts find none for a GPU that has both"
ONEDNN_MAX_CPU_ISA=AVX512_CORE memtide emulated.lua cpu
is "$out" "cpu	bf16 fp16" "a CPU without its instructions emulates bf16, too"
case $(cat /proc/cpuinfo) in *avx512_bf16*) expected="cpu	fp16" ;; *) expected="cpu	bf16 fp16" ;; esac
unset ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA
memtide emulated.lua cpu
is "$out" "$expected" "this machine's own"

# ---- what may be missing
for case in "34 there is no NVIDIA driver" "35 the NVIDIA driver is too old: it has CUDA 13.0, expected 13.0 or later" \
    "100 the NVIDIA driver finds no GPU"; do
    export EMULATE_FAIL="cudaGetDeviceCount:1:${case%% *}"
    memtide devices
    has "$out" "cuda:0    not available: ${case#* }" "CUDA's error ${case%% *} in plain words"
done
unset EMULATE_FAIL
MEMTIDE_CUDA=plugin/none.so memtide devices
has "$out" "cuda:0    not available: the CUDA plugin is missing: looked for plugin/none.so, which MEMTIDE_CUDA" \
    "no plugin"
is "$(echo "$out" | grep -c .)" 2 "then nothing is described either"
MEMTIDE_CUDA=out.txt memtide devices
has "$out" "cuda:0    not available: the CUDA plugin cannot be loaded: " "a plugin that cannot be loaded"
MEMTIDE_CUDA=$(ldd "$MEMTIDE" | awk '/libz/ { print $3 }') memtide devices
has "$out" "is not memtide's CUDA plugin: it has no memtide_cuda_open" "a library that is no plugin"

# ---- planning only
cat >small.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{name = "small", model = nn.Sequential{nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)},
  input = {8}, classes = 3, batch = 2, loss = nn.CrossEntropyLoss(), steps = 1, warmup = 0}
E
memtide predict small.lua --device cuda:h200 --csv -
is $status 0 "predict takes a described GPU"
has "$out" "NVIDIA H200" "and names it in the row"
has "$out" ",predicted,," "into which it fits"
memtide predict small.lua --device cuda:h200 --set batch=2147483647 --csv -
is "$status $(echo "$out" | grep -c ',skipped,.* more than the 15[0-9]* of cuda:h200')" "0 1" "or does not"
memtide run small.lua --device cuda:h200 --csv small.csv
is "$status $err" "69 memtide: planning only: cuda:h200 is described, not here; memtide predict takes it, run does not" \
    "run says once that it cannot"
is "$(ls small.csv 2>/dev/null)" "" "and writes no row"
memtide run small.lua --set device=cuda:h200 --csv small.csv
has "$(cat small.csv)" "planning only: NVIDIA H200" "of a cell of an axis the row says it"

memtide tune small.lua
is $status 69 "the CPU has nothing to tune"
has "$err" "nothing to choose between: expected a GPU that is here" "and says so"
export MEMTIDE_PICKS=$PWD/picks.txt
memtide tune small.lua --device cuda:0
is "$status $out" "0 cuda:0: $MEMTIDE_PICKS" "an emulated GPU has linear layers to tune"
is "$(cut -f1,4 picks.txt | grep -c '^emulated CUDA device.linear')" "$(wc -l <picks.txt | tr -d ' ')" "and their picks"
cp picks.txt before.txt
memtide run small.lua --device cuda:0 --csv tuned.csv
is "$status $(cmp picks.txt before.txt)" "0 " "a run takes them and times nothing"

finish
