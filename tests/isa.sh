# isa.sh "TEST..." ISA...: tests of CPU kernels, limited to each of these instruction sets that the machine has.
# Without a GPU or what emulates one: those tests are the same under every limit.
tests=$1
shift
status=0
for isa; do
    case $isa in
    SSE41) flag=sse4_1 ;;
    AVX2) flag=avx2 ;;
    AVX512_CORE) flag=avx512bw ;;
    AVX512_CORE_VNNI) flag=avx512_vnni ;;
    AVX512_CORE_BF16) flag=avx512_bf16 ;;
    AVX512_CORE_AMX) flag=amx_bf16 ;;
    *) echo "$isa: expected SSE41, AVX2 or AVX512_CORE, _VNNI, _BF16, _AMX" >&2; exit 2 ;;
    esac
    if ! grep -qw $flag /proc/cpuinfo; then
        echo "$isa: SKIPPED: this machine has no $flag"
        continue
    fi
    echo "ONEDNN_MAX_CPU_ISA=$isa"
    # shellcheck disable=SC2086
    ONEDNN_MAX_CPU_ISA=$isa MEMTIDE_CUDA=none OMP_NUM_THREADS=1 \
        prove --exec tests/run ${PROVE:--j2} $tests || status=1
done
exit $status
