# Registers, spills and shared memory of every own kernel, as ptxas tells them, and how full a multiprocessor gets by them: a line of
# a table for each .cu file with its hungriest kernel, and one for each kernel that spills. Needs nvcc, no GPU; minutes.
#
#   ARCH=90 NVCC=nvcc sh tests/cuda/registers.sh [FILE.cu ...]
ARCH=${ARCH-90} NVCC=${NVCC-nvcc}
[ $# -gt 0 ] || set -- kernels/cuda/*.cu
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT

echo "| file (sm_$ARCH) | kernels | most registers | of | warps of 64 at that | kernels that spill | most bytes spilled | most shared bytes |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
for file; do
    "$NVCC" -std=c++17 -O3 --fmad=false -arch="sm_$ARCH" -cubin -Xptxas -v -Icore -o "$work/x.cubin" "$file" 2>"$work/log" ||
        { cat "$work/log" >&2; exit 1; }
    c++filt <"$work/log" | awk -v file="$(basename "$file")" '
        /Function properties for/ { name = $0; sub(/.*Function properties for /, "", name); sub(/^void /, "", name); sub(/[<(].*/, "", name) }
        /bytes spill stores/ { spill = $0; sub(/.*frame, /, "", spill); sub(/ bytes spill.*/, "", spill) }
        /Used [0-9]+ registers/ {
            n++
            used = $0; sub(/.*Used /, "", used); sub(/ registers.*/, "", used)
            shared = 0
            if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
            if (used + 0 > most) { most = used + 0; of = name }
            if (spill + 0 > 0) spills++
            if (spill + 0 > worst) worst = spill + 0
            if (shared > room) room = shared
        }
        END {
            each = int((most + 7) / 8) * 8 * 32 # registers come to a warp by 256
            warps = each ? int(65536 / each) : 64
            if (warps > 64) warps = 64
            printf "| %s | %d | %d | `%s` | %d | %d | %d | %d |\n", file, n, most, of, warps, spills, worst, room
        }'
done
