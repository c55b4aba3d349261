#!/usr/bin/env bash
# Build a TensorRT engine from a file of `export.py --grid --end2end` (TensorRT's own suppression inside).
#
#   scripts/build_engine.sh best.onnx [best.engine] [further flags of trtexec, such as --fp16]
#
# Needs TensorRT 8.5 or newer with trtexec on PATH (or TRTEXEC=/path/to/trtexec) and an NVIDIA GPU. The project checks
# the structure of such files and has never run them.
set -euo pipefail

if [[ $# -lt 1 || $1 == -* ]]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 2
fi
onnx=$1
shift
engine=${onnx%.onnx}.engine
if [[ $# -gt 0 && $1 != -* ]]; then
    engine=$1
    shift
fi
trtexec=${TRTEXEC:-trtexec}
if [[ ! -f $onnx || $onnx != *.onnx ]]; then
    echo "error: $onnx is no .onnx file; write one: python export.py --weights best.pt --grid --end2end" >&2
    exit 2
fi
if ! command -v "$trtexec" >/dev/null; then
    echo "error: $trtexec is not on PATH; it comes with TensorRT. Set TRTEXEC=/path/to/trtexec" >&2
    exit 2
fi

# a file of --dynamic-batch has a free batch size: SHAPES="images:1x3x640x640 images:8x3x640x640 images:16x3x640x640"
shapes=()
if [[ -n ${SHAPES:-} ]]; then
    read -r least usual most <<<"$SHAPES"
    shapes=(--minShapes="$least" --optShapes="$usual" --maxShapes="$most")
fi
part=$engine.part
trap 'rm -f "$part"' EXIT
"$trtexec" --onnx="$onnx" --saveEngine="$part" "${shapes[@]}" "$@"
mv "$part" "$engine"
echo "$engine written"
