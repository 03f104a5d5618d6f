# CUDA_ARCHS=all: machine code for every kind of GPU from Turing to Blackwell, and PTX of the newest, as they lie in an object that nvcc
# has made. The smallest .cu file stands for all.
. tests/tap.sh
object=$WORK/kernels/cuda/nhwc_to_nchw.cu.o
unset MAKEFLAGS MFLAGS MAKELEVEL
(cd "$ROOT" && make ${NVCC:+NVCC="$NVCC"} BUILD="$WORK" CUDA_ARCHS=all "$object") >log 2>&1 || sed 's/^/# /' log

# A fat binary is a header (magic, version, bytes of the header, bytes that follow) and its images: each a header (1: PTX, 2: machine
# code; bytes of the header; bytes that follow; options; version; compute capability) and its bytes.
cat >images.lua <<'E'
local code, list = assert(io.open(arg[1], "rb"), "nothing was compiled"):read "a", {}
local at = code:find("\x50\xED\x55\xBA", 1, true)
local _, _, header, size = string.unpack("<I4I2I2I8", code, at)
local last = at + header + size
at = at + header
while at < last do
  local kind, _, head, bytes, _, _, _, _, arch = string.unpack("<I2I2I4I8I4I4I2I2I4", code, at)
  list[#list + 1] = (kind == 1 and "ptx" or "sm") .. arch
  at = at + head + bytes
end
table.sort(list)
print(table.concat(list, " "))
E
images=$("$MEMTIDE" images.lua "$object")
is "$images" "ptx120 sm100 sm110 sm120 sm75 sm80 sm86 sm89 sm90" "native code for each, PTX of the newest"

# Machine code runs on GPUs of its own major number whose minor one is not below its own.
bare=
for gpu in $("${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}" --list-gpu-code | tr -d a-z_); do
    runs=
    for image in $images; do
        code=${image#sm}
        case $image in sm*) [ "${code%?}" = "${gpu%?}" ] && [ "$code" -le "$gpu" ] && runs=1 ;; esac
    done
    [ "$runs" ] || bare="$bare $gpu"
done
is "${gpu-none}$bare" "${gpu-nvcc lists no GPU}" "machine code for every GPU that nvcc knows"
finish
