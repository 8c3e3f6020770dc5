#!/usr/bin/env bash
# Runs what needs a GPU, the most important first: the tests of the kernels, then the benchmarks.
#
#     benchmarks/gpu.sh RESULTS [part …]
#
# Each part has a time limit, set in LIMITS. A part that reaches it leaves what it has measured in the folder RESULTS. Another
# run with the same folder measures the rest: it skips finished records, and continues unfinished ones of this commit.
# OPTIONS are options of the benchmarks, such as "--quick --device cpu" to try the script out. In a copy without its
# repository, set BACKPASS_COMMIT to what `git describe --always --dirty --abbrev=12` prints in the original.
set -u
cd "$(dirname "$0")/.."
results=$(realpath -m "${1:?"the folder for the results is missing"}")
shift
mkdir -p "$results"
python=${PYTHON:-python3}
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD/src" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
# One cache for all processes: the timed ones load what the first ones compile.
cache=${TMPDIR:-/tmp}/backpass-compiled
export TRITON_CACHE_DIR=$cache/triton TORCHINDUCTOR_CACHE_DIR=$cache/inductor
read -ra options <<<"${OPTIONS:-}"

declare -A LIMITS=(
    [tests]=150 [operations]=260 [linear_cross_entropy_memory]=40 [attention_speed]=200 [attention_memory]=40
    [roofline]=30 [far]=90
)
for setting in ${LIMIT:-}; do # such as LIMIT="tests=60 far=30"
    LIMITS[${setting%=*}]=${setting#*=}
done

begun=$SECONDS
say() { echo "[$((SECONDS - begun)) s] $*"; }
within() { # seconds, command: at the limit, the command is interrupted as by Ctrl-C
    timeout --signal=INT --kill-after=15 "$1" env --default-signal=INT "${@:2}"
}

pytest=("$python" -m pytest -q -p no:cacheprovider -rfE --tb=short --color=no)

# Beside the tests, every call of the operations runs once: it fills the cache of compiled kernels.
tests() {
    local groups=("softmax log_softmax" "layer_norm rms_norm" "relu gelu" "silu swiglu" "rope embedding cross_entropy"
        "linear feed_forward linear_cross_entropy") group stems pids=()
    for group in "${groups[@]}"; do
        read -ra stems <<<"$group"
        TORCHINDUCTOR_COMPILE_THREADS=2 within "${LIMITS[tests]}" "$python" benchmarks/operations.py "${stems[@]}" --rehearse \
            "${options[@]}" >>"$results/log.txt" 2>&1 &
        pids+=($!)
    done
    # Each process begins at a different place, so that no kernel is left untried when the limit is reached.
    within "${LIMITS[tests]}" "${pytest[@]}" -n "${PROCESSES:-10}" --dist worksteal --durations=15 \
        tests/kernels tests/test_arrays.py -k "${CHOICE:-not beyond_32_bits}" \
        --ignore=tests/kernels/test_mutations.py --ignore=tests/kernels/test_resources.py \
        --ignore=tests/kernels/test_quick_interpreter.py >>"$results/tests.txt" 2>&1
    local status=$?
    tail -n 40 "$results/tests.txt"
    wait "${pids[@]}"
    return $status
}

# Tensors with more elements than 32 bits can count fill most of a GPU's memory, so these tests run alone.
far() {
    within "${LIMITS[far]}" "${pytest[@]}" tests/kernels -k beyond_32_bits --durations=0 >>"$results/tests.txt" 2>&1
    local status=$?
    tail -n 30 "$results/tests.txt"
    return $status
}

record() {
    if grep -qs '"finished": true' "$results/$1"-*.json; then
        echo "finished by an earlier run"
        return
    fi
    within "${LIMITS[$1]}" "$python" "benchmarks/$1.py" --results "$results" "${options[@]}" >>"$results/log.txt" 2>&1
    local status=$?
    ((status)) && tail -n 12 "$results/log.txt"
    return $status
}

failed=()
for part in "${@:-tests operations linear_cross_entropy_memory attention_speed attention_memory roofline far}"; do
    for name in $part; do
        say "$name, at most ${LIMITS[$name]:?"no such part"} s"
        case $name in
            tests | far) "$name" ;;
            *) record "$name" ;;
        esac || failed+=("$name")
    done
done
say "done; failed or cut: ${failed[*]:-none}"
((${#failed[@]} == 0))
