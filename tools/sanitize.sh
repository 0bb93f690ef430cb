#!/usr/bin/env bash
# Builds the engine with sanitizers and runs tests/sanitized.cpp and tests/sanitized.py under each: `tools/sanitize.sh
# [address] [thread]`, by default both. Needs g++ and, of Python, what onepass itself needs. Nothing is installed outside
# build/sanitize.
set -euo pipefail
cd "$(dirname "$0")/.."

export CXX=${CXX:-g++}
python=$(command -v python || command -v python3)
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')

if [[ $("$CXX" --version | head -1) == *clang* ]]; then
    echo "tools/sanitize.sh: needs g++ (CXX=$CXX is clang, whose run-time libraries cannot be preloaded)" >&2
    exit 1
fi

# The tools of the build as they are here, so that a second run compiles only what has changed, or else in an
# environment of their own.
isolation=()
if "$python" -c 'import nanobind, scikit_build_core' 2>/dev/null && hash cmake ninja 2>/dev/null; then
    isolation=(--no-build-isolation)
fi

# name, sanitizers, instruction sets of x86-64: an engine under build/sanitize/name/site.
build() {
    local folder=build/sanitize/$1 isas=()
    [[ $(uname -m) == x86_64 ]] && isas=(-Ccmake.define.ONEPASS_ISAS="$3")
    rm -rf "$folder/site"
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps "${isolation[@]}" --target "$folder/site" \
        -Cbuild-dir="$folder/cmake" -Ccmake.build-type=Debug -Ccmake.define.ONEPASS_SANITIZE="$2" "${isas[@]}" .
}

# name, library: the program under that engine. The interpreter itself is not instrumented, so the library is preloaded
# (with libstdc++, whose exceptions it follows), and -S keeps an editable onepass from being found first. Without
# address randomization: ThreadSanitizer wants certain addresses for itself.
run() {
    local site=build/sanitize/$1/site library
    library=$("$CXX" -print-file-name="$2")
    shift 2
    echo "+ $library: tests/sanitized.py $*"
    setarch "$(uname -m)" -R env LD_PRELOAD="$library $("$CXX" -print-file-name=libstdc++.so.6)" PYTHONMALLOC=malloc \
        PYTHONPATH="$PWD/$site:$packages" PYTHONDONTWRITEBYTECODE=1 \
        "$python" -S -X faulthandler tests/sanitized.py "$@"
}

# name, sanitizers, arguments: the pool and the block cache alone, without an interpreter.
run_alone() {
    local program=build/sanitize/alone_$1
    mkdir -p build/sanitize
    "$CXX" -std=c++20 -O1 -g -fno-omit-frame-pointer -fsanitize="$2" -fno-sanitize-recover=all -Icsrc \
        -Isrc/onepass/include tests/sanitized.cpp csrc/threads.cpp csrc/memory.cpp -pthread -o "$program"
    shift 2
    echo "+ $program $*"
    setarch "$(uname -m)" -R "$program" "$@"
}

address() {
    # Leaks are not looked for: the interpreter, and the engine's pool and cache, keep memory until the end.
    export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:allocator_may_return_null=1
    export UBSAN_OPTIONS=print_stacktrace=1
    run_alone undefined undefined fork
    run_alone address address,undefined
    local isas='v2;v3'  # what does not run here need not be compiled
    grep -qs avx512bw /proc/cpuinfo && isas+=';v4'
    build address address,undefined "$isas"
    run address libasan.so memory
    run address libasan.so threads
}

thread() {
    export TSAN_OPTIONS="suppressions=$PWD/tools/tsan.supp halt_on_error=1 second_deadlock_stack=1"
    run_alone thread thread
    build thread thread v2  # whose memory accesses are plain ones, all of which the sanitizer sees
    run thread libtsan.so threads
}

for sanitizer in "${@:-address thread}"; do
    for name in $sanitizer; do
        case $name in
            address | thread) "$name" ;;
            *) echo "usage: tools/sanitize.sh [address] [thread]" >&2; exit 2 ;;
        esac
    done
done
echo "sanitizers: clean"
