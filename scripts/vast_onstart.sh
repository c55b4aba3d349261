#!/usr/bin/env bash
# An interruptible instance's on-start script: begins a training, or resumes it after an interruption, until it is done.
#
#   bash scripts/vast_onstart.sh --name X --data ... [--mirror DEST] [flags of train.py]
#
# The same line does the right thing every time an instance starts, also on another machine: with --mirror, a run that
# is not here is fetched from there. It stops when the run is finished, when train.py calls the command itself wrong
# (exit code 2), which no repetition would change, and after too many failures. A crash of Python itself counts as one.
#
# Environment
#   AT_END     what to do with the instance then: nothing (default), stop, or destroy. destroy needs --mirror, and
#              becomes stop unless the last checkpoint was copied and verified. Not done after Ctrl-C
#   GRACE      seconds before AT_END, in which this script can be ended to keep the instance (default: 60)
#   TRAIN      what starts a training (default: .venv/bin/python train.py; several GPUs:
#              TRAIN=".venv/bin/torchrun --nproc_per_node 4 --max-restarts 3 train.py")
#   PAUSE      seconds before the next attempt (default: 5)
#   ATTEMPTS   attempts that may fail in a row without a new checkpoint (default: 20)
#   CONTAINER_ID, CONTAINER_API_KEY
#              the instance and its key, set by vast.ai; looked up where an SSH or tmux session does not have them
set -uo pipefail

pause=${PAUSE:-5}
attempts=${ATTEMPTS:-20}
at_end=${AT_END:-nothing}
grace=${GRACE:-60}

fail() {
    echo "error: $*" >&2
    exit 2
}

case "${1:-}" in
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
esac
[[ " $* " == *" --name "* || " $* " == *" --config "* ]] || fail "give --name: it says which run is begun or resumed"
[[ " $* " != *" --resume"* ]] || fail "leave --resume out: this script adds --resume auto"

# A variable of the container: its first process has it, and /etc/environment where the image writes it there.
of_container() { # name
    {
        cat "${CONTAINER_ENVIRONMENT:-/proc/1/environ}" | tr '\0' '\n'
        cat /etc/environment
    } 2>/dev/null | sed -n "s/^\(export \)\{0,1\}$1=//p" | tr -d "\"'" | head -n 1
}

case $at_end in
    nothing) ;;
    stop | destroy)
        export CONTAINER_ID=${CONTAINER_ID:-$(of_container CONTAINER_ID)}
        export CONTAINER_API_KEY=${CONTAINER_API_KEY:-$(of_container CONTAINER_API_KEY)}
        command -v vastai >/dev/null || fail "AT_END=$at_end needs vastai, which is not on PATH: pip install vastai"
        [[ -n $CONTAINER_ID && -n $CONTAINER_API_KEY ]] ||
            fail "AT_END=$at_end needs CONTAINER_ID and CONTAINER_API_KEY, which are not in this session:" \
                "export them (env shows them in the on-start script)"
        [[ $at_end == stop || " $* " == *" --mirror"* ]] || fail "AT_END=destroy deletes the disk: give --mirror DEST"
        ;;
    *) fail "AT_END is $at_end; it is nothing, stop or destroy" ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.." || fail "the project's folder is gone"
read -r -a train <<<"${TRAIN:-.venv/bin/python train.py}"
places=(runs outputs) name='*'
for ((i = 1; i < $#; i++)); do
    next=$((i + 1))
    [[ ${!i} == --project ]] && places+=("${!next}")
    [[ ${!i} == --name ]] && name=${!next}
done

newest() { # time and path of the run's newest checkpoint
    find "${places[@]}" -name '.?*' -prune -o -path "*/$name/*" -name 'last.pt*' -printf '%T@ %p\n' 2>/dev/null |
        sort -n | tail -1
}

# Whether the newest checkpoint was copied: the run's `.mirror/verified` has the time of the checkpoint in that copy.
is_copied() {
    local last folder
    last=$(newest)
    last=${last#* }
    [[ -n $last ]] || return 1
    folder=$(dirname "$last")
    [[ -d $folder/.mirror ]] || folder=$(dirname "$folder")
    [[ -f $folder/.mirror/verified && ! $last -nt $folder/.mirror/verified ]]
}

finish() { # exit code, reason
    local what=$at_end code=$1
    echo "the training has ended: $2" >&2
    if [[ $what == destroy ]] && ! is_copied; then
        echo "the last checkpoint has no verified copy: the instance is stopped, not destroyed" >&2
        what=stop
    fi
    if [[ $what != nothing ]]; then
        echo "in $grace seconds: vastai $what instance $CONTAINER_ID (kill $$ keeps it running)" >&2
        sleep "$grace"
        vastai "$what" instance "$CONTAINER_ID" --api-key "$CONTAINER_API_KEY" >&2 <<<y ||
            echo "vastai failed: the instance may still be running and billed" >&2
    fi
    exit "$code"
}

failed=0
while :; do
    before=$(newest)
    "${train[@]}" "$@" --resume auto
    code=$?
    case $code in
        0) finish 0 "the run is complete" ;;
        130) exit 130 ;; # Ctrl-C: somebody is here
        2) finish 2 "train.py ended with code 2, a mistake that repeating does not change: see its message above" ;;
    esac
    if [[ $(newest) != "$before" ]]; then failed=0; else failed=$((failed + 1)); fi
    ((failed < attempts)) || finish 2 "$attempts attempts in a row without a new checkpoint (last code $code)"
    echo "training ended with code $code; the next attempt follows in $pause seconds" >&2
    sleep "$pause"
done
