#!/usr/bin/env bash
# Fetch COCO 2017 into ./coco: images, annotations, and label files made from them. Run it again to resume after a stop.
#
#   bash scripts/get_coco.sh [--dir DIR] [--val-only] [--keep-zips] [--checksums FILE]
#
#   --dir DIR         where to put it (default: ./coco, which data/coco.yaml names)
#   --val-only        only the 5000 validation images (1 GB instead of 20 GB)
#   --keep-zips       keep the archives after unpacking them
#   --checksums FILE  lines "md5  archive" (default: scripts/coco.md5); an archive not listed is only tested by unzip
#
# Environment: COCO_URL (default http://images.cocodataset.org) another mirror; PYTHON the interpreter for the labels.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
url=${COCO_URL:-http://images.cocodataset.org}
dir=./coco
splits=(train2017 val2017)
keep=false
checksums=$here/scripts/coco.md5

fail() {
    echo "error: $*" >&2
    exit 2
}

while (($#)); do
    case $1 in
        --dir | --checksums)
            [[ -n ${2:-} ]] || fail "$1 needs a value: $([[ $1 == --dir ]] && echo a folder || echo a file)"
            if [[ $1 == --dir ]]; then dir=$2; else checksums=$2; fi
            shift 2
            ;;
        --val-only) splits=(val2017) && shift ;;
        --keep-zips) keep=true && shift ;;
        -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit 0 ;;
        *) fail "unknown option $1 (see --help)" ;;
    esac
done
[[ -f $checksums ]] || fail "no checksum file $checksums"
for program in curl unzip md5sum; do
    command -v "$program" >/dev/null || fail "$program is missing: apt-get install -y curl unzip coreutils"
done

python=${PYTHON:-}
if [[ -z $python ]]; then
    python=python3
    [[ -x $here/.venv/bin/python ]] && python=$here/.venv/bin/python
fi

mkdir -p "$dir/.got" "$dir/images" "$dir/annotations" "$dir/labels"

# The part of the work named $1 is done: a mark remembers it, so that a second run begins where the first one stopped.
is_done() { [[ -f $dir/.got/$1 ]]; }
mark_done() { touch "$dir/.got/$1"; }

# Largest space, in kB, that a part of the work takes while its archive and the unpacked files exist together.
space_of() { # part
    case $1 in
        images_train2017) echo $((39 * 1048576)) ;;
        images_val2017) echo $((2 * 1048576)) ;;
        *) echo $((1 * 1048576)) ;;
    esac
}

kilobytes() { # files and folders, some of which need not be there
    local path found=()
    for path in "$@"; do
        [[ -e $path ]] && found+=("$path")
    done
    ((${#found[@]})) || { echo 0 && return; }
    du -ck --apparent-size "${found[@]}" | awk 'END {print $1}'
}

# Ask for the space of what is still to come: without the parts that are done, and without what is there of the others.
check_space() {
    local free needed=0 part split
    for split in "${splits[@]}"; do
        part=images_$split
        is_done "$part" || needed=$((needed + $(space_of "$part") - \
            $(kilobytes "$dir/$split.zip" "$dir/$split.zip.part" "$dir/images/$split")))
    done
    part=$dir/annotations_trainval2017.zip
    is_done annotations ||
        needed=$((needed + $(space_of annotations) - $(kilobytes "$part" "$part.part" "$dir/annotations")))
    free=$(df -Pk "$dir" | awk 'NR == 2 {print $4}') || free=
    if [[ ! $free =~ ^[0-9]+$ ]]; then
        echo "free space in $dir is not readable: not checked" >&2
    elif ((free < needed)); then
        fail "only $((free / 1048576)) GB free in $dir, about $(((needed + 1048575) / 1048576)) GB needed:" \
            "free some space, or use --dir or --val-only"
    fi
}

# Download an archive under another name, check it, rename it. curl resumes a partial file.
fetch() { # path below the address
    local path=$1 archive=${1##*/} part status=0 code
    part=$dir/$archive.part
    [[ -f $dir/$archive ]] && return
    echo "downloading $archive"
    code=$(curl --fail --location --retry 5 --retry-delay 5 --continue-at - --progress-bar \
        --write-out '%{http_code}' --output "$part" "$url/$path") || status=$?
    # 416: nothing is missing beyond what the partial file holds
    if ((status != 0)) && [[ $code != 416 ]]; then
        fail "download of $url/$path stopped (curl $status): run this command again, it resumes there"
    fi
    if ! intact "$archive" "$part"; then
        rm -f "$part"
        fail "$archive is damaged and was removed: run this command again to download it again"
    fi
    mv "$part" "$dir/$archive"
}

intact() { # archive name, file
    local expected
    expected=$(awk -v name="$1" '$2 == name {print $1}' "$checksums")
    if [[ -z $expected ]]; then
        echo "testing $1 (no checksum known)"
        unzip -tqq "$2" >/dev/null
    else
        echo "checking the md5 of $1"
        [[ $(md5sum <"$2") == "$expected"* ]]
    fi
}

# Unpack the members of an archive that match a pattern; prints progress, for it takes minutes.
unpack() { # archive, folder, pattern
    local total
    total=$(unzip -Z1 "$dir/$1" "$3" | grep -vc '/$')
    unzip -o "$dir/$1" "$3" -d "$2" | awk -v total="$total" -v name="$1" '
        /inflating:|extracting:/ { if (++n % 500 == 0 || n == total) printf "\runpacking %s %d/%d", name, n, total }
        END { print "" }'
}

get_images() { # split
    is_done "images_$1" && return
    fetch "zips/$1.zip"
    unpack "$1.zip" "$dir/images" "$1/*"
    local found wanted
    found=$(find "$dir/images/$1" -name '*.jpg' | wc -l)
    wanted=$(unzip -Z1 "$dir/$1.zip" | grep -c '\.jpg$')
    ((found == wanted)) || fail "$dir/images/$1 holds $found images instead of $wanted: remove the folder, run again"
    mark_done "images_$1"
    "$keep" || rm -f "$dir/$1.zip"
}

get_annotations() {
    is_done annotations && return
    fetch annotations/annotations_trainval2017.zip
    unpack annotations_trainval2017.zip "$dir" 'annotations/instances_*'
    mark_done annotations
    "$keep" || rm -f "$dir/annotations_trainval2017.zip"
}

make_labels() { # split
    is_done "labels_$1" && return
    # the folder is moved into place as a whole, so existing files are complete, or yours
    if [[ -z $(ls -A "$dir/labels/$1" 2>/dev/null) ]]; then
        rm -rf "$dir/.got/converted" "$dir/labels/$1"
        PYTHONPATH=$here "$python" -m yolov7fast data convert "$dir/annotations/instances_$1.json" \
            "$dir/.got/converted" --to yolo --images none
        mv "$dir/.got/converted/labels/${1%2017}" "$dir/labels/$1"
        rm -rf "$dir/.got/converted"
    fi
    mark_done "labels_$1"
}

check_space
get_annotations
for split in "${splits[@]}"; do
    get_images "$split"
    make_labels "$split"
done
for split in "${splits[@]}"; do
    echo "$dir/images/$split: $(find "$dir/images/$split" -name '*.jpg' | wc -l) images," \
        "$(find "$dir/labels/$split" -name '*.txt' | wc -l) label files"
done
