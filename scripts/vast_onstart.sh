#!/usr/bin/env bash
# An interruptible instance's on-start script: begins a training, or resumes it after an interruption, until it is done.
#
#   bash scripts/vast_onstart.sh --name X --data ... [flags of train.py]
#
# The same line does the right thing every time the instance starts. It stops when the run is finished, and when
# train.py calls the command itself wrong (exit code 2), which no repetition would change.
#
# Environment
#   TRAIN      what starts a training (default: .venv/bin/python train.py; several GPUs:
#              TRAIN=".venv/bin/torchrun --nproc_per_node 4 --max-restarts 3 train.py")
#   PAUSE      seconds before the next attempt (default: 5)
#   ATTEMPTS   attempts that may fail in a row without a new checkpoint (default: 20)
set -uo pipefail

pause=${PAUSE:-5}
attempts=${ATTEMPTS:-20}

fail() {
    echo "error: $*" >&2
    exit 2
}

case "${1:-}" in
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
esac
[[ " $* " == *" --name "* || " $* " == *" --config "* ]] || fail "give --name: it says which run is begun or resumed"
[[ " $* " != *" --resume"* ]] || fail "leave --resume out: this script adds --resume auto"

cd "$(dirname "${BASH_SOURCE[0]}")/.." || fail "the project's folder is gone"
read -r -a train <<<"${TRAIN:-.venv/bin/python train.py}"

newest() { # time of the newest checkpoint
    find runs outputs -name 'last.pt*' -printf '%T@\n' 2>/dev/null | sort -n | tail -1
}

failed=0
while :; do
    before=$(newest)
    "${train[@]}" "$@" --resume auto
    code=$?
    case $code in
        0 | 130) exit "$code" ;; # done, or stopped by Ctrl-C
        2) fail "train.py ended with code 2, a mistake that repeating does not change: see its message above" ;;
    esac
    if [[ $(newest) != "$before" ]]; then failed=0; else failed=$((failed + 1)); fi
    ((failed < attempts)) || fail "$attempts attempts in a row without a new checkpoint (last code $code)"
    echo "training ended with code $code; the next attempt follows in $pause seconds" >&2
    sleep "$pause"
done
