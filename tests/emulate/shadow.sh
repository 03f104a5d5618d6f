# The own kernels under the shadow memory of the emulated GPU (tests/emulate/shadow/shadow.h), which ends the program at the
# first race, misaligned vector, place out of bounds or byte that was never written: at a sample of the shapes of t_kernels,
# t_sequence and t_device, and where libraries' calls stand beside them (t_conv_ways, t_attention_ways). `make shadow` runs all shapes, t_linear and
# t_updates, too, in more orders of blocks and threads.
#
#   SAMPLE=N   at most so many cases of each kind; 0: all
#   SEEDS=...  of random orders, a run of everything in each; "-": first to last. Each run has one from last to first, too.
BUILD=$(realpath "${BUILD-build}")
. tests/tap.sh

export MEMTIDE_CUDA="$BUILD/shadow/memtide_cuda.so" EMULATE_SHADOW=1 TEST_DEVICE=cuda:0 SAMPLE="${SAMPLE-1}" SAMPLE_TYPES=all

# check SEED TEST [ARGUMENT]
check() {
    if [ "$1" = - ]; then unset EMULATE_SEED; else export EMULATE_SEED="$1"; fi
    seed=$1 test=$2
    shift 2
    "$BUILD/tests/$test" "$@" >log.txt 2>&1
    status=$?
    result "$status" "$test, order $seed: $(grep -c '^ok' log.txt) checks"
    [ "$status" = 0 ] || { grep '^ok' log.txt | tail -n 1; grep -v '^ok' log.txt; } | cut -c 1-400 | sed 's/^/# /'
}

if [ ! -e "$MEMTIDE_CUDA" ]; then
    skip "shadow memory" "kernels are built without instrumentation"
else
    for seed in ${SEEDS-1}; do
        check "$seed" device/t_kernels
        check "$seed" device/t_sequence
        check "$seed" device/t_device cuda:0
        check "$seed" shadow/t_conv_ways
        check "$seed" shadow/t_attention_ways
        [ "$SAMPLE" != 0 ] || check "$seed" shadow/t_linear
        [ "$SAMPLE" != 0 ] || check "$seed" device/t_updates
    done
fi
finish
