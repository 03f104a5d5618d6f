#!/bin/sh
# make gpu-check: everything that needs a GPU, part by part; a part that fails does not stop the next one. It runs what
# was built and compiles nothing, so that a build folder can be carried to the machine with the GPU.
#
#   sh tests/gpu.sh                      every part
#   PARTS="ops oracle" sh tests/gpu.sh   these
#   LIMIT=540 sh tests/gpu.sh            starts no part after so many seconds, and ends the one that runs then
#   sh tests/gpu.sh --part ops           one part, its output on the terminal
#   sh tests/gpu.sh --pack build/carry   what the parts run as one small folder, with the libraries that another machine
#                                        may lack; there: BUILD=build/carry sh tests/gpu.sh
#
# BUILD (build), DEVICE (cuda:0), PYTHON (python3, with torch), DESCRIBED (h200: the description that a GPU of this name
# is compared with), EACH (3: engines of each of cuDNN's rankings that `ways` tries).
# MODELS, PRECISIONS: of describe, tune and the comparison with PyTorch, which has ENGINES and PROCESSES, too.
# STEPS (50): timed steps of the sweeps.
# Results are in BUILD/gpu; sweeps are resumed. OUT, a folder, gets summary.txt, log.txt and results.tgz after every
# part: unpacked into BUILD/gpu elsewhere, they are resumed there. Exit status: 0 nothing failed, 1 something did, 77
# there is no such device.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=$(realpath "${BUILD:-build}") || exit 1
export BUILD DEVICE="${DEVICE:-cuda:0}" PYTHON="${PYTHON:-python3}"
: "${DESCRIBED:=h200}" "${EACH:=3}" "${STEPS:=50}" "${PROCESSES:=3}" "${LIMIT:=0}"
: "${MODELS:=simple_convnet vgg16}" "${PRECISIONS:=fp32,tf32,amp_bf16}"
: "${ENGINES:=eager,eager_benchmark,cuda_graph,compile,compile_reduce_overhead,compile_max_autotune}"
ALL="devices plugin kernels ops oracle truth streams ranks ways memcheck racecheck initcheck describe gap tune article batch peers"
ALL="$ALL pytorch compare"
memtide=$BUILD/memtide work=$BUILD/gpu peers=experiments/peers
# the tests lie in other folders than the plugin
export MEMTIDE_CUDA="${MEMTIDE_CUDA:-$BUILD/memtide_cuda.so}"
export MEMTIDE_PICKS="${MEMTIDE_PICKS:-$work/picks.txt}"
export PYTHONDONTWRITEBYTECODE=1 PATH="$PATH:/usr/local/cuda/bin"

# ---- one folder of what is run

pack() { # folder
    rm -rf "$1" && mkdir -p "$1/lib" || return
    for program in memtide memtide_cuda.so tests/device/t_kernels tests/device/t_sequence tests/device/t_device tests/device/t_truth tests/device/t_streams tests/device/t_ranks \
        tests/cuda/t_conv_ways tests/cuda/t_attention_ways tests/cuda/t_linear; do
        install -D -m 755 -s "$BUILD/$program" "$1/$program" || return
    done
    cp -R "$BUILD/devices" "$1" || return
    # all but the C and C++ libraries, which are every machine's own
    ldd "$memtide" | awk '/=>/ && $1 !~ /^lib(c|m|mvec|dl|pthread|rt|stdc\+\+|gcc_s)\.so/ { print $3 }' |
        xargs -I{} cp -L {} "$1/lib" || return
    du -sh "$1"
}

# ---- libraries

# cuDNN and cuBLAS may be there as Python packages only.
library_path() {
    "$PYTHON" -c 'import glob, sys; print(*(d for p in sys.path for d in glob.glob(p + "/nvidia/*/lib")), sep="\n")' \
        2>/dev/null
    ls -d /usr/local/cuda*/lib64 2>/dev/null
}
# Of the libraries that were packed those that this machine has not, and no others: its own Python may want newer ones.
lacking_path() {
    [ -d "$BUILD/lib" ] || return
    ldd "$memtide" "$BUILD"/lib/* | awk '/not found/ { print $1 }' | sort -u | while read -r library; do
        [ ! -f "$BUILD/lib/$library" ] || ln -sf "$BUILD/lib/$library" "$work/lib"
    done
    echo "$work/lib"
}

# ---- parts: status 0 passed, 77 skipped, anything else failed; the last line says why

skipped() { echo "$@"; exit 77; }
of_gpus() { case $DEVICE in cuda*) ;; *) skipped "of GPUs only" ;; esac; }
need() { command -v "$1" >/dev/null || skipped "no $1 here"; }

part_devices() { # the last line is that of the device in question
    "$memtide" devices
    "$memtide" devices | grep "^$DEVICE " | grep -v 'not available: '
}

part_plugin() {
    of_gpus
    [ -f "$MEMTIDE_CUDA" ] || { echo "no $MEMTIDE_CUDA"; return 1; }
    ldd "$MEMTIDE_CUDA" | grep -e dnn -e blas -e 'not found'
    ! ldd "$MEMTIDE_CUDA" | grep -q 'not found'
}

part_kernels() { # they know the CPU and cuda:0
    [ "$DEVICE" = cuda:0 ] || skipped "of cuda:0 only"
    "$BUILD/tests/device/t_kernels" && "$BUILD/tests/device/t_sequence"
}
part_ops() { "$BUILD/tests/device/t_device" "$DEVICE"; }
part_ways() { # twice: then with the plans that were compiled and kept
    [ "$DEVICE" = cuda:0 ] || skipped "of cuda:0 only"
    for test in t_conv_ways t_attention_ways; do
        "$BUILD/tests/cuda/$test" "$EACH" && "$BUILD/tests/cuda/$test" "$EACH" || return
    done
    "$BUILD/tests/cuda/t_linear"
}
part_oracle() {
    for test in oracle grad_scaler paged; do TEST_DEVICE=$DEVICE "$memtide" "tests/lua/t_$test.lua" || return; done
}
part_truth() { TEST_DEVICE=$DEVICE "$BUILD/tests/device/t_truth"; }
part_streams() { TEST_DEVICE=$DEVICE "$BUILD/tests/device/t_streams"; }
part_ranks() { # processes of one test, each with a GPU of its own
    [ "$DEVICE" = cuda:0 ] || skipped "from cuda:0 on only"
    [ "$("$memtide" devices | grep -c '^cuda:[0-9]')" -ge 2 ] || skipped "of two GPUs or more"
    "$BUILD/tests/device/t_ranks" gpus
}

sanitize() { # some networks are enough: all kinds of kernels, in every precision
    of_gpus
    need compute-sanitizer
    for network in mixed rows "two sequences"; do
        compute-sanitizer --tool "$1" --error-exitcode 9 "$BUILD/tests/device/t_device" "$DEVICE" "$network" \
            >"$work/sanitizer.txt" 2>&1
        status=$?
        cat "$work/sanitizer.txt"
        ! grep -qi 'device not supported' "$work/sanitizer.txt" || skipped "compute-sanitizer does not know this device"
        case $status in 0) ;; 9) in_libraries "$work/sanitizer.txt" || return ;; *) return 1 ;; esac
    done
}
# Are all errors that it tells of in kernels of NVIDIA's, by their names? Then they are told, and that is all.
in_libraries() {
    grep -E '^=+ .*(  at |ccess at )' "$1" | sed -E 's/.*(  at |ccess at )//; s/\+0x[0-9a-f]+//' | sort | uniq -c |
        sort -rn >"$work/places.txt"
    [ -s "$work/places.txt" ] && ! grep -vE 'cudnn|cutlass|cublas|nvjet|xmma|gemm|conv|fft|[dw]grad|splitK' \
        "$work/places.txt" || return
    echo "nothing in own kernels; $(wc -l <"$work/places.txt") kinds of errors in the libraries'"
}
part_memcheck() { sanitize memcheck; }
part_racecheck() { sanitize racecheck; }
part_initcheck() { sanitize initcheck; }

# Workspace of every op and the predicted peak of every cell, as planned for a device.
plans() {
    for network in $MODELS; do
        for precision in $(echo "$PRECISIONS" | tr , ' '); do
            "$memtide" dump $peers.lua --device "$1" --case "$network" --set precision="$precision" 2>/dev/null |
                grep workspace | sed "s/^/$network $precision /"
        done
        "$memtide" predict $peers.lua --device "$1" --case "$network" --set precision="$PRECISIONS" --csv - \
            2>/dev/null | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "predicted_peak_bytes") at = i }
                { print $2, $at }'
    done
}

# The real device's description, and whether planning with it, and with the one in the sources, gives the same bytes.
part_describe() {
    of_gpus
    "$memtide" devices --describe "$DEVICE" >"$work/device.json" || return
    install -D -m 644 "$work/device.json" "$BUILD/devices/captured.json" || return
    plans "$DEVICE" >"$work/plans.txt"
    [ -s "$work/plans.txt" ] || { echo "nothing was planned for $DEVICE"; return 1; }
    same=0
    for name in captured "$DESCRIBED"; do
        if [ "$name" = "$DESCRIBED" ] && ! grep -qi "$name" "$work/device.json"; then
            echo "this is no $name: not compared with its description"
            continue
        fi
        if plans "cuda:$name" | diff "$work/plans.txt" -; then echo "planned for cuda:$name: the same bytes"
        else same=1; echo "planned for cuda:$name: other bytes"; fi
    done
    rm -f "$work/plans.txt"
    return $same
}

# From one op to the next, in a recorded step: tests/bench/chain.lua.
part_gap() {
    rm -f "$work/gap.csv"
    "$memtide" run tests/bench/chain.lua --device "$DEVICE" --csv "$work/gap.csv" || return
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "step_ms") at = i } { ms[NR] = $at }
        END { printf "%.2f us from one op to the next\n", ms[3] - ms[2] }' "$work/gap.csv"
}

part_tune() {
    of_gpus
    for model in $MODELS; do
        "$memtide" tune $peers.lua --device "$DEVICE" --case "$model" --set precision="$PRECISIONS" || return
    done
}

# A row whose prediction is not what was measured has status error, and the exit status tells.
sweep() {
    "$memtide" run "experiments/$1.lua" --device "$DEVICE" --steps "$STEPS" --csv "$work/$1.csv"
    case $? in 0 | 5 | 6) ;; *) return 1 ;; esac # 5, 6: a claim is refuted or inconclusive
}
part_article() { sweep article; }
part_batch() { sweep batch_by_precision; }

part_peers() { # each repeat in a process of its own
    for repeats in $(seq "$PROCESSES"); do
        for model in $MODELS; do
            "$memtide" run $peers.lua --device "$DEVICE" --case "$model" --set precision="$PRECISIONS" \
                --set repeats="$repeats" --steps "$STEPS" --csv "$work/peers.csv" || return
        done
    done
}

part_pytorch() {
    need "$PYTHON"
    "$PYTHON" -c 'import torch' 2>/dev/null || skipped "$PYTHON has no torch"
    [ -f "$work/peers.csv" ] || skipped "no peers.csv: run the part peers first"
    "$PYTHON" $peers/pytorch.py --like "$work/peers.csv" --csv "$work/pytorch.csv" --processes "$PROCESSES" \
        --engines "$ENGINES" --steps "$STEPS" || return
    [ ! -f "$work/article.csv" ] || "$PYTHON" $peers/pytorch.py --like "$work/article.csv" --csv "$work/pytorch.csv" \
        --names Sequential=simple_convnet,SmallerConvNet=smaller_convnet --processes 1 --engines eager --steps "$STEPS"
}

part_compare() {
    [ -f "$work/pytorch.csv" ] || skipped "no pytorch.csv: run the part pytorch first"
    "$memtide" compare "$work/peers.csv" "$work/pytorch.csv" || return
    [ ! -f "$work/article.csv" ] || "$memtide" compare "$work/article.csv" "$work/pytorch.csv"
}

# ---- running them

[ "${1:-}" != --pack ] || { pack "${2:?--pack wants a folder}"; exit; }
mkdir -p "$work/lib" || exit 1
LD_LIBRARY_PATH="$({ echo "${LD_LIBRARY_PATH:-}"; lacking_path; library_path; } | grep . | paste -sd: -)"
export LD_LIBRARY_PATH
if [ "${1:-}" = --part ]; then
    case " $ALL " in *" ${2:-} "*) "part_$2"; exit ;; esac
    echo "gpu.sh: no part '${2:-}'; parts: $ALL" >&2
    exit 2
fi

"$memtide" predict $peers.lua --device "$DEVICE" --case mlp --set precision=fp32 --csv - >"$work/log.txt" 2>&1
case $? in
0) ;;
69) echo "SKIP: $(tail -n 1 "$work/log.txt")"; exit 77 ;;
*) cat "$work/log.txt"; exit 1 ;;
esac

start=$(date +%s) failed=0
: >"$work/summary.txt"

say() { # part, result, seconds, why
    printf '%-10s %-4s %5d s  %s\n' "$@" | cut -c 1-200 | tee -a "$work/summary.txt"
}

# After every part, so that nothing is lost where this script is stopped.
deliver() {
    [ -n "${OUT:-}" ] || return
    tar -czf "$OUT/results.tgz" -C "$work" --exclude=./lib .
    cp "$work/summary.txt" "$work/log.txt" "$OUT"
}

for part in ${PARTS:-$ALL}; do
    began=$(date +%s) left=0
    if [ "$LIMIT" -gt 0 ]; then
        left=$((LIMIT - began + start))
        [ $left -gt 0 ] || { say "$part" SKIP 0 "no time left"; continue; }
    fi
    echo "==== $part" >>"$work/log.txt"
    timeout -k 20 $left sh tests/gpu.sh --part "$part" >"$work/part.txt" 2>&1
    status=$?
    cat "$work/part.txt" >>"$work/log.txt"
    why=$(grep -m 1 '^not ok' "$work/part.txt" || tail -n 1 "$work/part.txt")
    case $status in
    0) result=PASS ;;
    77) result=SKIP ;;
    124 | 137) result=FAIL why="the time was over: $why" failed=1 ;;
    *) result=FAIL failed=1 ;;
    esac
    rm -f "$work/part.txt"
    say "$part" $result $(($(date +%s) - began)) "$why"
    deliver
done
exit $failed
