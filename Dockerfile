# An image to train in, run as a user without root's rights:
#
#   docker build -t yolov7-fast .
#   docker run --gpus all --shm-size 16g -v "$PWD/runs:/workspace/yolov7-fast/runs" yolov7-fast train.py --data ...
#
# torch is chosen by scripts/choose_torch.py. No GPU is visible while an image is built, so TORCH_INDEX says for which
# CUDA version: the default has code for all cards up to Blackwell and runs on drivers from 570 on.
FROM nvidia/cuda:12.8.1-base-ubuntu24.04

ARG TORCH_INDEX=https://download.pytorch.org/whl/cu128
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1

RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates curl git openssh-client python3 python3-venv rclone rsync tmux \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --shell /bin/bash trainer \
    && install -d -o trainer /workspace/yolov7-fast

USER trainer
WORKDIR /workspace/yolov7-fast
COPY --chown=trainer scripts/choose_torch.py scripts/
COPY --chown=trainer yolov7fast/__init__.py yolov7fast/
COPY --chown=trainer yolov7fast/core/__init__.py yolov7fast/core/torch_build.py yolov7fast/core/
COPY --chown=trainer requirements.txt .
RUN TORCH_INDEX="$TORCH_INDEX" python3 scripts/choose_torch.py --venv .venv \
    && .venv/bin/python -m pip install -r requirements.txt -c .venv/torch-constraints.txt
COPY --chown=trainer . .

ENV PATH=/workspace/yolov7-fast/.venv/bin:$PATH
ENTRYPOINT ["python"]
CMD ["-m", "yolov7fast", "--help"]
