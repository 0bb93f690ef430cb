#!/usr/bin/env bash
# Style and types: ruff, clang-format and mypy, all from the `dev` extra. --fix rewrites what can be rewritten.
set -euo pipefail
cd "$(dirname "$0")/.."

fix=${1:-}
if [[ $# -gt 1 || ($fix != "" && $fix != --fix) ]]; then
    echo "usage: tools/lint.sh [--fix]" >&2
    exit 2
fi
mapfile -t sources < <(find csrc src/onepass tests -name '*.h' -o -name '*.cpp' | sort)

step() {
    echo "+ $*"
    "$@"
}

if [[ $fix == --fix ]]; then
    step ruff check --fix .
    step ruff format .
    step clang-format -i "${sources[@]}"
else
    step ruff check .
    step ruff format --check .
    step clang-format --dry-run -Werror "${sources[@]}"
fi
step mypy
