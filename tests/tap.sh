# Test Anything Protocol for shell tests of the command line. A test sources this, calls `check` and ends in `finish`.
set -u
MEMTIDE=$(realpath "${MEMTIDE:-build/memtide}")
ROOT=$PWD
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
cd "$WORK" || exit 1
export OMP_NUM_THREADS=1 XDG_CACHE_HOME=$WORK/cache
count=0 failed=0

# Runs memtide; its output is in $out, its errors in $err, its exit status in $status.
memtide() {
    status=0
    "$MEMTIDE" "$@" >out.txt 2>err.txt </dev/null || status=$?
    out=$(cat out.txt) err=$(cat err.txt)
}

result() { # good?, what
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; return; fi
    failed=1
    echo "not ok $count - $2"
}

is() { # found, expected, what
    if [ "$1" = "$2" ]; then result 0 "$3"; else result 1 "$3"; echo "# found    $1"; echo "# expected $2"; fi
}

has() { # text, part, what
    case $1 in *"$2"*) result 0 "$3" ;; *) result 1 "$3"; echo "# found: $1"; echo "# wanted in it: $2" ;; esac
}

skip() { # what, why
    count=$((count + 1))
    echo "ok $count # SKIP $1: $2"
}

finish() { echo "1..$count"; exit $failed; }
