#!/usr/bin/env bash
# From an empty rented machine to a tmux session ready for training. Run it again at any time: it only does what is missing.
#
#   REPO_URL=https://github.com/YOU/YOUR-COPY.git bash vast_setup.sh [--no-install] [--no-tmux] [--dry-run]
#   bash scripts/vast_setup.sh              inside a clone: REPO_URL is not needed
#   bash scripts/vast_setup.sh --health     only the health check
#
#   --no-install  no system packages, no Python packages
#   --no-tmux     no tmux session
#   --dry-run     print the commands instead of running them
#
# Environment
#   REPO_URL     the project to clone         PROJECT_DIR  where to (default: /workspace/yolov7-fast, else ~/yolov7-fast)
#   PYTHON       interpreter for the virtual environment (default: python3; 3.11 or newer)
#   TORCH_INDEX  address to install torch from; default: by the driver, and an installed torch that can use the GPU
#                is kept (scripts/choose_torch.py)
#   TB_HOST      address TensorBoard listens on (default: 127.0.0.1, reached through an SSH tunnel); TB_PORT (6006)
set -euo pipefail

python=${PYTHON:-python3}
session=vast
tb_host=${TB_HOST:-127.0.0.1}
tb_port=${TB_PORT:-6006}
install=true
tmux_wanted=true
health_only=false
dry=false
packages=(git tmux htop unzip curl rsync)

fail() {
    echo "error: $*" >&2
    exit 2
}

say() { printf '\n== %s\n' "$*"; }

run() { # a command, or its text with --dry-run
    if "$dry"; then
        printf '+ %s\n' "$*"
    else
        "$@"
    fi
}

for option in "$@"; do
    case $option in
        --no-install) install=false ;;
        --no-tmux) tmux_wanted=false ;;
        --health) health_only=true ;;
        --dry-run) dry=true ;;
        -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
        *) fail "unknown option $option (see --help)" ;;
    esac
done

# The clone this script lies in, or the folder it is to be cloned into.
project_folder() {
    local here
    here=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd)
    if [[ -f $here/requirements.txt && -d $here/models ]]; then
        echo "$here"
    elif [[ -n ${PROJECT_DIR:-} ]]; then
        echo "$PROJECT_DIR"
    elif [[ -d /workspace ]]; then
        echo /workspace/yolov7-fast
    else
        echo "$HOME/yolov7-fast"
    fi
}

install_packages() {
    local missing=() name
    for name in "${packages[@]}"; do
        command -v "$name" >/dev/null || missing+=("$name")
    done
    "$python" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    ((${#missing[@]})) || return 0
    say "system packages: ${missing[*]}"
    ((EUID == 0)) || "$dry" || fail "not root: ask for these packages to be installed: ${missing[*]}"
    run apt-get update -qq
    run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
}

clone_project() {
    [[ -f $project/requirements.txt ]] && return
    [[ -n ${REPO_URL:-} ]] || fail "REPO_URL is not set: REPO_URL=https://github.com/YOU/YOUR-COPY.git bash vast_setup.sh"
    say "clone into $project"
    run git clone "$REPO_URL" "$project"
}

# An old interpreter would only show by a syntax error, after minutes of downloads.
check_python() {
    local interpreter=$python version
    local remedy="give a newer one by PYTHON=python3.12 bash scripts/vast_setup.sh, or rent an image that has it"
    if [[ -x $project/.venv/bin/python ]]; then
        interpreter=$project/.venv/bin/python
        remedy="remove $project/.venv and $remedy"
    elif "$dry" && ! command -v "$python" >/dev/null; then
        return 0 # one of the packages that would have been installed
    fi
    version=$("$interpreter" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
        fail "$interpreter cannot be run: $remedy"
    "$interpreter" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$interpreter is Python $version, but 3.11 or newer is needed: $remedy"
}

install_python() {
    local venv=$project/.venv
    say "Python environment in $venv"
    run "$python" "$project/scripts/choose_torch.py" --venv "$venv"
    run "$venv/bin/python" -m pip install -r "$project/requirements.txt" -c "$venv/torch-constraints.txt"
    run touch "$venv/.run-ready" # the file that make checks: `make train` does not install again
}

# Kilobytes of a file system: column 2 all, 4 free. Fails where df does, or where it says something else.
space() { # folder, column
    local found
    found=$(df -Pk "$1" 2>/dev/null | awk -v column="$2" 'NR == 2 {print $column}') || return 1
    [[ $found =~ ^[0-9]+$ ]] && echo "$found"
}

# What the machine says of itself; whatever cannot be read is reported and ends nothing.
resources() {
    local found folder=$HOME
    [[ -d $project ]] && folder=$project
    if command -v nvidia-smi >/dev/null; then
        found=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null) || found="not readable"
        echo "driver      ${found%%$'\n'*}"
    fi
    awk '/MemTotal/ {m = $2} /MemAvailable/ {a = $2} END {printf "memory      %.1f GB, %.1f GB available\n", m / 1e6, a / 1e6}' \
        /proc/meminfo 2>/dev/null || echo "memory      not readable"
    if found=$(space /dev/shm 2); then
        echo "shared mem  $((found / 1048576)) GB in /dev/shm"
        ((found >= 8 * 1048576)) ||
            echo "            small: loader workers pass batches through it; use fewer --workers, or a larger --shm-size"
    else
        echo "shared mem  not readable"
    fi
    if found=$(space "$folder" 4); then
        echo "disk        $((found / 1048576)) GB free"
        ((found >= 60 * 1048576)) ||
            echo "            small: COCO needs 42 GB while unpacking, then 20 GB, 3 to 18 GB for each resized copy"
    else
        echo "disk        not readable"
    fi
}

health() {
    say "health check"
    local interpreter=$python
    [[ -x $project/.venv/bin/python ]] && interpreter=$project/.venv/bin/python
    "$interpreter" - <<'PYTHON' || echo "torch       cannot be used: see above"
import os
import sys

print(f"python      {sys.version.split()[0]}")
try:
    import torch
except ImportError as error:
    sys.exit(f"torch       missing ({error}): run this script without --no-install")
print(f"torch       {torch.__version__}")
if torch.cuda.is_available():
    print(f"CUDA        {torch.version.cuda}")
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        print(f"GPU {i}       {p.name}, {p.total_memory / 1e9:.1f} GB, compute capability {p.major}.{p.minor}")
        a = torch.ones(1024, 1024, device=f"cuda:{i}")
        ok = float((a @ a)[0, 0]) == 1024  # an unsupported card fails here, not an hour into the training
        print(f"            {'computes' if ok else 'WRONG RESULTS: choose another machine'}")
else:
    print(f"CUDA        not usable (torch built for {torch.version.cuda or 'the CPU only'})")
    print("            if nvidia-smi works, run this script again: it installs the build for the driver")
print(f"CPU         {os.cpu_count()} cores, {len(os.sched_getaffinity(0))} usable")
PYTHON
    resources
}

start_tmux() {
    say "tmux session $session"
    if ! "$dry" && tmux has-session -t "=$session" 2>/dev/null; then
        echo "is there already: left as it is"
        return
    fi
    local shell="cd '$project' && . .venv/bin/activate" gpu="watch -n 1 nvidia-smi" cpu=top
    command -v htop >/dev/null && cpu=htop
    command -v nvidia-smi >/dev/null || gpu="echo no GPU on this machine"
    run tmux new-session -d -s "$session" -n train -c "$project"
    run tmux send-keys -t "=$session:train" "$shell" Enter
    run tmux new-window -d -t "=$session:" -n cpu "$cpu"
    run tmux new-window -d -t "=$session:" -n gpu -c "$project"
    run tmux send-keys -t "=$session:gpu" "$gpu" Enter
    run tmux new-window -d -t "=$session:" -n terminal -c "$project"
    run tmux send-keys -t "=$session:terminal" "$shell" Enter
    run tmux new-window -d -t "=$session:" -n tensorboard -c "$project"
    run tmux send-keys -t "=$session:tensorboard" \
        "$shell; python -m tensorboard.main --logdir runs --host $tb_host --port $tb_port" Enter
}

project=$(project_folder)
if ! "$health_only"; then
    if "$install"; then
        install_packages
        check_python
    fi
    clone_project
    if "$install"; then install_python; fi
fi
health
if ! "$health_only" && "$tmux_wanted"; then
    start_tmux
    say "ready"
    echo "tmux $([[ -n ${TMUX:-} ]] && echo switch-client || echo attach) -t $session   (Ctrl-b n: next window, Ctrl-b d: leave it running)"
    echo "in window train: python train.py --data data/shapes.yaml --cfg cfg/training/yolov7-tiny.yaml --img 320"
    echo "TensorBoard: from your own machine ssh -L $tb_port:localhost:$tb_port ..., then http://localhost:$tb_port"
fi
