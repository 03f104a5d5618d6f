# The MPI plugin by itself, under mpirun with 1 to 4 ranks; and compiled with pieces of 97 bytes in place of 2^30, so that
# messages are taken apart as those above INT_MAX are.
. tests/tap.sh
cd "$ROOT" || exit 1
if ! command -v mpirun >/dev/null || ! [ -e "$BUILD/tests/mpi/memtide_mpi.so" ]; then
    skip "the MPI plugin" "no mpirun, or no mpicc"
    finish
fi
root=
[ "$(id -u)" = 0 ] && root=--allow-run-as-root
for plugin in memtide_mpi.so tests/mpi/memtide_mpi.so; do
    for world in 1 2 3 4; do
        timeout 60 mpirun $root --oversubscribe --bind-to none -n $world -x MEMTIDE_MPI="$BUILD/$plugin" "$BUILD/tests/mpi/t_comm" \
            >"$WORK/out.txt" 2>&1
        status=$?
        is "$status $(grep -c '^not ok' "$WORK/out.txt") $(grep -c '^1\.\.' "$WORK/out.txt")" "0 0 1" "$plugin, $world ranks: $(grep -c '^ok' "$WORK/out.txt") checks"
        [ $status = 0 ] || grep -v '^ok' "$WORK/out.txt" | head -20 | sed 's/^/# /'
    done
done
finish
