# The planning library and the CUDA plugin find NVIDIA's libraries where pip lays them out: beside a wheel's memtide/bin, and in the
# Python environment into which they were installed. Libraries of these names stand there, which are empty.
. tests/tap.sh
BUILD=$(cd "$ROOT" && realpath "${BUILD:-build}")
unset LD_LIBRARY_PATH
packages=$WORK/env/lib/python3.11/site-packages
mkdir -p "$packages/memtide/bin" "$packages/nvidia/cudnn/lib" "$packages/nvidia/cu13/lib" env/lib/memtide

empty() { # folder, name
    echo 'int nothing;' | cc -shared -fPIC -x c - -o "$packages/nvidia/$1/lib/$2" -Wl,-soname,"$2"
}
empty cudnn libcudnn.so.9
empty cu13 libcublasLt.so.13

found() { # program: NVIDIA's libraries that it finds, without the folders that they share
    ldd "$1" 2>/dev/null | awk '/libcudnn|libcublasLt/ && $2 == "=>" { print $3 }' | while read -r path; do
        path=$(realpath "$path")
        echo "${path#"$packages/"}"
    done | sort | paste -sd ' '
}

for library in memtide_plan.so:nvidia/cudnn/lib/libcudnn.so.9 \
    memtide_cuda.so:"nvidia/cu13/lib/libcublasLt.so.13 nvidia/cudnn/lib/libcudnn.so.9"; do
    name=${library%%:*} wanted=${library#*:}
    if [ ! -e "$BUILD/$name" ]; then
        skip "$name" "it was not built"
        continue
    fi
    cp "$BUILD/$name" "$packages/memtide/bin"
    is "$(found "$packages/memtide/bin/$name")" "$wanted" "$name in a wheel"
done

if [ ! -e "$BUILD/memtide_plan.so" ]; then
    skip "make install into an environment" "there is no planning library"
else # linked as `make install PREFIX=env` does it, of the objects that are there
    mkdir -p b/core && cp -a "$BUILD/plan" b && cp -a "$BUILD/core/base" "$BUILD/core/program" b/core
    (cd "$ROOT" && make BUILD="$WORK/b" NVCC= PREFIX="$WORK/env" "$WORK/b/memtide_plan.so") >log 2>&1 || sed 's/^/# /' log
    cp b/memtide_plan.so env/lib/memtide
    is "$(found env/lib/memtide/memtide_plan.so)" nvidia/cudnn/lib/libcudnn.so.9 "make install PREFIX=ENVIRONMENT"
fi
finish
