#!/bin/sh
# run.sh READERS SECONDS FOLDER: every target of the fuzzer for as long, two at a time, from the seeds in FOLDER/seeds;
# what is new goes to FOLDER/corpus and is tried first the next time, what fails to FOLDER/TARGET-*. Status 1: something
# did.
# run.sh READERS SECONDS FOLDER TARGET: one of them.
readers=$1 seconds=$2 folder=$3 target=${4:-}
if [ -z "$target" ]; then
    FUZZ_DIR=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")") || exit 1
    export FUZZ_DIR
    trap 'rm -rf "$FUZZ_DIR"' EXIT
    "$readers" --targets | xargs -P "${JOBS:-2}" -n 1 sh "$0" "$readers" "$seconds" "$folder" || exit 1
    exit 0
fi
mkdir -p "$folder/corpus/$target" "$folder/seeds/$target"
status=0
FUZZ_TARGET=$target OMP_NUM_THREADS=1 ASAN_OPTIONS=allocator_may_return_null=1 "$readers" \
    -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=16384 -dict="$(dirname "$0")/readers.dict" \
    -print_final_stats=1 -artifact_prefix="$folder/$target-" \
    "$folder/corpus/$target" "$folder/seeds/$target" >"$folder/$target.log" 2>&1 || status=1
runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/$target.log")
if [ $status = 0 ] && [ "${runs:-0}" -gt 0 ]; then echo "fuzz $target: $runs inputs, nothing found"; exit 0; fi
tail -n 60 "$folder/$target.log"
echo "fuzz $target: FAILED after ${runs:-0} inputs: $folder/$target.log"
exit 1
