#!/usr/bin/env bash
# Runs what needs a GPU, the most important first, in at most nine minutes.
#
#     benchmarks/gpu.sh RESULTS [part …]
#
# Everything is written to the folder RESULTS as it is measured. Each part has a time limit, set in LIMITS, and all parts
# together have BUDGET seconds. Another run with the same folder continues: it skips parts that are done, and continues
# unfinished records of this commit. Run the script until it says that nothing is left.
#
#     new                          tests of kernels that have not run on a GPU yet, and of a captured training step
#     operations                   the record of the operations, one at a time, head and loss among them
#     captured_step                the record of a training step in a CUDA graph
#     attention_speed, …           the records of attention, of memory, and of the roofline
#     tests, far                   all other tests of kernels; those that fill most of a GPU's memory
#
# TINY=1 tries the script out on a CPU: small shapes, few tests, and Triton's interpreter. OPTIONS are more options of the
# benchmarks. In a copy without its repository, set BACKPASS_COMMIT to what `git describe --always --dirty --abbrev=12`
# prints in the original.
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
commit=${BACKPASS_COMMIT:-$(git describe --always --dirty --abbrev=12 2>/dev/null)}
read -ra options <<<"${OPTIONS:-}"
new="softcap or dropout or norm_of_sum or captured_in_a_graph" choice="not beyond_32_bits" far=beyond_32_bits processes=10
if [[ ${TINY:-} ]]; then
    export TRITON_INTERPRET=1
    options+=(--quick --device cpu)
    new=a_device_reports choice=test_launch far=test_launch processes=0
fi

budget=${BUDGET:-540}
declare -A LIMITS=(
    [new]=70 [operations]=200 [captured_step]=40 [attention_speed]=120 [linear_cross_entropy_memory]=40
    [attention_memory]=40 [roofline]=30 [tests]=150 [far]=90
)
for setting in ${LIMIT:-}; do # such as LIMIT="tests=60 far=30"
    LIMITS[${setting%=*}]=${setting#*=}
done

begun=$SECONDS
say() { echo "[$((SECONDS - begun)) s] $*"; }
limit_of() { # part: its limit, or the time that is left if that is less
    local left=$((budget - (SECONDS - begun)))
    echo $((LIMITS[$1] < left ? LIMITS[$1] : left))
}
within() { # seconds, command: at the limit, the command is interrupted as by Ctrl-C
    timeout --signal=INT --kill-after=15 "$1" env --default-signal=INT "${@:2}"
}

run_tests() { # part, arguments: run them, and note that they ended, whether they passed or not
    local part=$1 status
    within "$(limit_of "$part")" "$python" -m pytest -q -p no:cacheprovider -rfE --tb=short --color=no \
        -n "$processes" --dist worksteal --durations=15 "${@:2}" >>"$results/tests.txt" 2>&1
    status=$?
    tail -n 30 "$results/tests.txt"
    ((status <= 1)) && echo "$part $commit $status" >>"$results/done.txt"
    return $status
}

# Beside the tests, every call of the operations runs once: it fills the cache of compiled kernels.
new() {
    local groups=("softmax log_softmax" "layer_norm rms_norm" "relu gelu" "silu swiglu dropout" "rope embedding cross_entropy"
        "linear feed_forward linear_cross_entropy") group stems pids=() status
    [[ ${TINY:-} ]] && groups=()
    for group in "${groups[@]}"; do
        read -ra stems <<<"$group"
        TORCHINDUCTOR_COMPILE_THREADS=2 within "$(limit_of new)" "$python" benchmarks/operations.py "${stems[@]}" \
            --rehearse "${options[@]}" >>"$results/log.txt" 2>&1 &
        pids+=($!)
    done
    run_tests new tests/kernels tests/functional/test_captured.py -k "$new"
    status=$?
    ((${#pids[@]})) && wait "${pids[@]}"
    return $status
}

# Each process begins at a different place, so that no kernel is left untried when the limit is reached.
tests() {
    run_tests tests tests/kernels tests/functional/test_captured.py -k "$choice" \
        --ignore=tests/kernels/test_mutations.py --ignore=tests/kernels/test_resources.py \
        --ignore=tests/kernels/test_quick_interpreter.py
}

# Tensors with more elements than 32 bits can count fill most of a GPU's memory, so these tests run alone.
far() {
    processes=0
    run_tests far tests/kernels -k "$far"
}

record() {
    within "$(limit_of "$1")" "$python" "benchmarks/$1.py" --results "$results" "${options[@]}" \
        >>"$results/log.txt" 2>&1
    local status=$?
    ((status)) && tail -n 12 "$results/log.txt"
    return $status
}

is_done() {
    grep -qs '"finished": true' "$results/$1"-*.json || grep -qs "^$1 $commit " "$results/done.txt"
}

failed=() left=()
parts=(new operations captured_step attention_speed linear_cross_entropy_memory attention_memory roofline tests far)
(($#)) && parts=("$@")
for name in "${parts[@]}"; do
    : "${LIMITS[$name]:?"no such part: $name"}"
    if is_done "$name"; then
        say "$name: done by an earlier run"
    elif (($(limit_of "$name") < ${LEAST:-20})); then
        say "$name: left to the next run"
        left+=("$name")
    else
        say "$name, at most $(limit_of "$name") s"
        case $name in
            new | tests | far) "$name" ;;
            *) record "$name" ;;
        esac || failed+=("$name")
        is_done "$name" || left+=("$name")
    fi
done
say "failed or cut: ${failed[*]:-nothing}; left: ${left[*]:-nothing}"
((${#failed[@]} == 0 && ${#left[@]} == 0))
