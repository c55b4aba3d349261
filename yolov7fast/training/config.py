"""The config of a training run: one frozen dataclass with a field for each flag and for values that follow from the
flags.

`TrainConfig` has what every family of detectors has, its subclasses add the flags of their family. A config is never
changed: functions return a new one (`dataclasses.replace`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from yolov7fast.training.checkpoints.resume import Limits

AUTO_BATCH = "auto"  # --batch-size auto: the largest batch that fits into memory; a resumed run keeps the chosen batch
SAVE_MINUTES = 10.0  # between checkpoints inside an epoch, unless --save-every or --nosave says otherwise
# facts of one command line, not settings of the run
NOT_STORED = (
    *("given", "in_file", "config", "starts_over", "resume_time", "allow_changed_data", "automatic_batch"),
    *("keep_files", "mirror", "on_save", "on_end"),
)


@dataclass(frozen=True)
class TrainConfig:
    """A run of any family. `docs/flags.md` describes each flag."""

    # --- flags: data and loading
    data: str = "data/coco.yaml"
    img_size: int | list[int] = 640
    single_cls: bool = False
    keep_partial_labels: bool = False
    strict_labels: bool = False
    allow_download: bool = False
    val_fraction: float = 0.0
    workers: int = 8
    fast_dataloader: bool = False
    cache_images: str | bool = False
    cache_dir: str = ""
    # --- flags: network and training
    weights: str = ""
    epochs: int = 300
    batch_size: Any = 16  # an int, over all processes; AUTO_BATCH until `train` has chosen one
    amp: str = "auto"
    skip_nonfinite: int = 0
    subset_size: int = 0
    subset_seed: int = 0
    overfit: int = 0
    max_iter: int = 0
    patience: int = 0
    resize_schedule: str = ""
    # --- flags: the run
    config: str = ""
    project: str = "runs/train"
    name: str = "exp"
    exist_ok: bool = False
    rate: float | None = None
    resume: Any = False  # of a resumed run: the path of its checkpoint; True: the newest one
    allow_changed_data: bool = False
    nosave: bool = False
    save_every: float | None = None
    mirror: str = ""
    on_save: str = ""
    on_end: str = ""
    keep_epochs: int | None = None
    notest: bool = False
    eval_interval: int = 1
    test_batch_size: int | None = None
    device: str = ""
    local_rank: int = -1
    dist_timeout: float = 10.0
    seed: int | None = None
    deterministic: bool = False
    wandb: bool = False
    entity: str | None = None
    upload_dataset: bool = False
    bbox_interval: int = -1
    save_period: int = -1
    artifact_alias: str = "latest"
    # --- values that follow from flags
    world_size: int = 1  # processes
    global_rank: int = -1  # of this process; -1: the only one
    save_dir: str = ""  # the run's folder; empty until it is chosen
    shuffled: bool | None = None  # whether epochs are permuted
    test_size: int = 0  # of validation; 0: that of the last stage of the resize schedule
    given: tuple[str, ...] = ()  # flags on the command line
    in_file: tuple[str, ...] = ()  # flags in the run file
    automatic_batch: bool = False  # `batch_size` was chosen for --batch-size auto
    starts_over: bool = False  # tables of results that a killed process left in the folder are removed
    resume_time: int = 0  # st_mtime_ns of the checkpoint when it was read
    keep_files: bool = True  # False: a generation of --evolve or a measurement, which writes no checkpoints or plots

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The config of parsed flags or of a stored `opt.yaml`; keys without a field are left out."""
        known: dict[str, Any] = {name: value for name, value in options.items() if name in cls.names()}
        lists = {name: tuple(known.get(name, ())) for name in ("given", "in_file")}
        return cls(**{**known, **lists})

    @classmethod
    def names(cls) -> set[str]:
        return {each.name for each in fields(cls)}

    @property
    def batch_per_process(self) -> int:
        """Images of a batch in one process."""
        return self.batch_size // self.world_size

    @property
    def limits(self) -> Limits:
        return Limits(self.epochs, self.max_iter, self.patience)

    @property
    def save_minutes(self) -> float:
        """Minutes between checkpoints inside an epoch; 0: none there."""
        if self.save_every is not None:
            return self.save_every
        return 0.0 if self.nosave else SAVE_MINUTES

    def stored(self) -> dict[str, Any]:
        """The content of `opt.yaml`: upstream's keys, and those of this package."""
        values = {name: value for name, value in asdict(self).items() if name not in NOT_STORED}
        return values | {"total_batch_size": self.batch_size}


@dataclass(frozen=True)
class YoloTrainConfig(TrainConfig):
    """A run of the YOLO family."""

    img_size: list[int] = field(default_factory=lambda: [640, 640])  # of training and of validation
    rect: bool = False
    image_weights: bool = False
    multi_scale: bool = False
    quad: bool = False
    persistent_workers: bool = False
    worker_tensor: bool = False
    micro_batch: int = 0
    cfg: str = ""
    freeze: list[int] = field(default_factory=lambda: [0])
    noautoanchor: bool = False
    transfer_weights: bool = False
    heads: int = 0
    head_config: str = ""
    standard_grouping: bool = False
    geometry_grouping: bool = False
    channels_last: bool = False
    compile: str = ""  # mode of torch.compile
    cuda_graph: bool = False
    hyp: str | dict[str, Any] = "data/hyp.scratch.p5.yaml"  # a file, or values over those of a file (`base`)
    adam: bool = False
    linear_lr: bool = False
    label_smoothing: float = 0.0
    auto_lr: bool = False
    loss_ota: int | None = None
    assigner: str = ""
    sync_bn: bool = False
    evolve: bool = False
    bucket: str = ""
    v5_metric: bool = False
    shuffle: bool = False
    verbose: bool = False


@dataclass(frozen=True)
class DetrTrainConfig(TrainConfig):
    """A run of the DETR family."""

    data: str = "data/shapes.yaml"
    img_size: int = 640
    epochs: int = 50
    batch_size: Any = 4
    project: str = "outputs"
    seed: int | None = 0
    fliplr: float = 0.5
    flipud: float = 0.0
    scale_min: float = 0.6
    crop: float = 0.5
    crop_min: float = 0.5
    architecture: str = "detr"
    network: dict[str, Any] = field(default_factory=dict)
    pretrained: str = ""
    lr: float = 1e-4
    backbone_lr: float = 1e-5
    weight_decay: float = 1e-4
    clip_norm: float = 0.1
    schedule: str = "step"
    lr_drop: int = 0
    final_lr: float = 0.01
    warmup_iters: int = 0
    profile: int = 0
    checkpoint_period: int = 1
