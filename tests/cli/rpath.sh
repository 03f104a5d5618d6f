# The planning library and the CUDA plugin find NVIDIA's libraries where pip lays them out: beside a wheel's memtide/bin, and in a
# Python environment into whose lib/memtide they were installed. Empty libraries of these names stand there.
. tests/tap.sh
version=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])') ||
    { skip "NVIDIA's Python packages" "there is no python3"; finish; }
BUILD=$(cd "$ROOT" && realpath "${BUILD:-build}")
unset LD_LIBRARY_PATH
packages=$WORK/env/lib/$version/site-packages
mkdir -p "$packages/memtide/bin" "$packages/nvidia/cudnn/lib" "$packages/nvidia/cu13/lib" env/lib/memtide

empty() { # folder, name
    echo 'int nothing;' | cc -shared -fPIC -x c - -o "$packages/nvidia/$1/lib/$2" -Wl,-soname,"$2"
}
empty cudnn libcudnn.so.9
empty cu13 libcublasLt.so.13

found() { # folder, name: NVIDIA's libraries that it finds there, without the folders that they share
    cp "$BUILD/$2" "$1"
    ldd "$1/$2" 2>/dev/null | awk '/libcudnn|libcublasLt/ && $2 == "=>" { print $3 }' | while read -r path; do
        path=$(realpath "$path")
        echo "${path#"$packages/"}"
    done | sort | paste -sd ' '
}

each() { # name, what it finds
    if [ ! -e "$BUILD/$1" ]; then
        skip "$1" "it was not built"
        return
    fi
    is "$(found "$packages/memtide/bin" "$1")" "$2" "$1 in a wheel"
    is "$(found "$WORK/env/lib/memtide" "$1")" "$2" "$1 in an environment"
}

each memtide_plan.so nvidia/cudnn/lib/libcudnn.so.9
each memtide_cuda.so "nvidia/cu13/lib/libcublasLt.so.13 nvidia/cudnn/lib/libcudnn.so.9"
finish
