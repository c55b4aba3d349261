"""Sources of images: files, lists, videos, streams; what cannot be read is named."""

import threading
from types import SimpleNamespace
from typing import ClassVar

import cv2
import numpy as np
import pytest

from tests.data.data_golden import sha, synth
from yolov7fast.core.errors import UserError
from yolov7fast.inference import sources
from yolov7fast.inference.sources import LoadImages, LoadStreams, clean_name, open_source


def grey_image(value: int, height: int = 48, width: int = 64) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def make_video(path, frames: int = 3, codec: str = "MJPG", size=(64, 48)) -> str:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), 10, size)
    for i in range(frames):
        writer.write(grey_image(10 * (i + 1), size[1], size[0]))
    writer.release()
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """b.jpg, a.png, clip.avi, a broken image, a broken video, a text file and a sub-folder with one more image."""
    cv2.imwrite(str(tmp_path / "b.jpg"), grey_image(100))
    cv2.imwrite(str(tmp_path / "a.png"), grey_image(50, 64, 48))
    make_video(tmp_path / "clip.avi")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "broken.mkv").write_bytes(b"no video")
    (tmp_path / "notes.md").write_text("hello")
    (tmp_path / "sub").mkdir()
    cv2.imwrite(str(tmp_path / "sub" / "c.jpg"), grey_image(150))
    return tmp_path


def test_folder_gives_images_then_videos_and_names_what_is_broken(folder):
    source = open_source(str(folder), 64, 32)
    seen = [(p.rsplit("/", 1)[1], image.shape, original.shape) for p, image, original, _ in source]
    assert seen[:2] == [("a.png", (3, 64, 64), (64, 48, 3)), ("b.jpg", (3, 64, 64), (48, 64, 3))]
    assert [name for name, *_ in seen[2:]] == ["clip.avi"] * 3
    assert len(source) == 5, "files, not frames; not the text file, not the sub-folder"
    assert [("broken.jpg" in a, "broken.mkv" in b) for a, b in [source.skipped]] == [(True, True)]


def test_frames_of_a_video_are_counted_from_one(folder):
    frames = list(open_source(str(folder / "clip.avi"), 64, 32).frames())
    assert [(f.number, f.total, f.kind, f.fps) for f in frames] == [(i, 3, "video", 10.0) for i in (1, 2, 3)]
    assert open_source(str(folder)).total == 3 + 3 + 1, "images, frames, and one for the broken video"
    assert frames[1].prefix == f"video 1/1 (2/3) {folder / 'clip.avi'}: "


def test_glob_is_recursive_where_asked(folder):
    files = open_source(str(folder / "**" / "*.jpg")).files
    assert [f.rsplit("/", 1)[1] for f in files] == ["b.jpg", "broken.jpg", "c.jpg"]


@pytest.mark.parametrize(
    "name, message",
    [
        ("missing", "does not exist"),
        ("sub/*.png", "no image and no video"),
        ("none.txt", "source list .* does not exist"),
        ("empty.txt", "is empty"),
    ],
)
def test_a_source_without_images_is_a_user_error(folder, name, message):
    (folder / "empty.txt").write_text("\n# nothing\n")
    with pytest.raises(UserError, match=message):
        open_source(str(folder / name))


def test_list_of_local_files_is_read_like_a_folder(folder, monkeypatch):
    listing = folder / "list.txt"
    listing.write_text(f"{folder / 'b.jpg'}\n\n# a comment\nsub/c.jpg\nclip.avi\nmissing.jpg\n{folder / 'b.jpg'}\n")
    monkeypatch.chdir("/")  # paths relative to the list are found from anywhere
    source = open_source(str(listing))
    assert isinstance(source, LoadImages)
    assert [f.rsplit("/", 1)[1] for f in source.files] == ["b.jpg", "c.jpg", "clip.avi"]
    assert len(source.skipped) == 1 and "missing.jpg" in source.skipped[0]


def test_a_video_cut_short_is_read_as_far_as_it_goes(tmp_path):
    path, rng = tmp_path / "long.avi", np.random.default_rng(0)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for _ in range(20):
        writer.write(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8))
    writer.release()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    numbers = [f.number for f in open_source(str(path)).frames()]
    assert 0 < len(numbers) < 20 and numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("fps, used", [(0, 30.0), (float("nan"), 30.0), (24, 24), (1e9, 30.0)])
def test_a_header_without_a_sensible_rate_counts_as_thirty(tmp_path, monkeypatch, fps, used):
    capture = cv2.VideoCapture(make_video(tmp_path / "a.avi", 1))
    header = {cv2.CAP_PROP_FPS: fps, cv2.CAP_PROP_FRAME_COUNT: 1}
    headed = SimpleNamespace(read=capture.read, release=capture.release, get=header.get)
    monkeypatch.setattr(sources.cv2, "VideoCapture", lambda path: headed)
    assert [frame.fps for frame in open_source(str(tmp_path / "a.avi")).frames()] == [used]


def test_images_to_detect_on_are_as_recorded(golden, bccd, tmp_path):
    """The recorded folder: two photographs, a drawn image, a text file, a video of five frames."""
    record = golden("data.json.gz")["detect_sources"]
    photographs = sorted((bccd / "images/test").glob("*.jpg"))
    for name, photograph in zip(("a.JPG", "b.jpg"), photographs):
        (tmp_path / name).symlink_to(photograph)
    cv2.imwrite(str(tmp_path / "c.png"), synth(300, 451))
    (tmp_path / "n.txt").touch()
    make_video(tmp_path / "aa.avi", 5, size=(96, 64))
    for case in record["runs"]:
        source = LoadImages(str(tmp_path), case["img_size"], case["stride"])
        assert len(source) == case["len"]
        seen = list(source.frames())
        for frame, item in zip(seen, case["items"], strict=True):
            assert (frame.path.rsplit("/", 1)[1], frame.kind) == (item["name"], item["mode"])
            assert (list(frame.image.shape), list(frame.original.shape)) == (item["shape"], item["im0_shape"])
            assert item["sha256"] in (sha(frame.image), None)  # no figures for the video, whose codec may differ
    assert [f.rsplit("/", 1)[1] for f in LoadImages(str(tmp_path / "*.jpg")).files] == record["glob_jpg"]


# --- streams ----------------------------------------------------------------------------------------------------------


class FakeCapture:
    """Stands for a camera: `count` frames whose grey value is their number, then the end; its rate is 0."""

    opened: ClassVar[list] = []

    def __init__(self, source):
        again = any(capture.source == source and capture.number > 0 for capture in FakeCapture.opened)
        self.source, self.number, self.count = source, -1, 41 if source == 0 and not again else 0
        self.released = False
        FakeCapture.opened.append(self)

    def grab(self) -> bool:
        self.number += 1
        return self.number < self.count

    def retrieve(self):
        return True, grey_image(self.number)

    def read(self):
        return (True, grey_image(self.number)) if self.grab() else (False, None)

    def get(self, prop):
        return 0.0

    def release(self):
        self.released = True


def test_a_camera_that_does_not_exist_is_named_by_our_message_alone(capfd):
    with pytest.raises(UserError, match="source 97 cannot be opened"):
        LoadStreams("97", 64, 32)
    assert capfd.readouterr().err == ""


@pytest.fixture
def camera(monkeypatch):
    FakeCapture.opened = []
    monkeypatch.setattr(sources.cv2, "VideoCapture", FakeCapture)
    return FakeCapture


def test_a_live_stream_gives_every_fourth_frame_and_is_connected_again_once(camera, caplog):
    source = LoadStreams("0", 64, 32)
    # the reader may run ahead of us: what comes is in order, each at most once, and the last decoded frame is among it
    seen = [int(originals[0][0, 0, 0]) for _, _, originals, _ in source]
    assert seen == sorted(set(seen)) and set(seen) <= {0, *range(4, 41, 4)} and seen[-1] % 4 == 0
    source.close()
    assert all(capture.released for capture in camera.opened)
    assert not [t for t in threading.enumerate() if t.name.startswith("stream")]
    assert "connecting again" in caplog.text


def test_unreadable_streams_are_skipped_and_none_at_all_is_an_error(camera, caplog):
    source = LoadStreams(["0", "rtsp://nowhere/1"], 64, 32)
    assert len(source.streams) == 1 and "rtsp://nowhere/1" in source.skipped[0]
    assert caplog.text.count("skipped: ") == 1
    source.close()
    caplog.clear()
    with pytest.raises(UserError, match="no stream of 1 source can be read"):
        LoadStreams("rtsp://nowhere/1", 64, 32)
    assert not caplog.messages  # the error says it


def test_recordings_among_streams_are_played_to_their_end_frame_by_frame(tmp_path):
    names = [make_video(tmp_path / "a.avi", 3), make_video(tmp_path / "b.avi", 2)]
    source = LoadStreams(names, 64, 32)
    steps = [(len(names), images.shape) for names, images, _, _ in source]
    assert steps == [(2, (2, 3, 64, 64)), (2, (2, 3, 64, 64)), (1, (1, 3, 64, 64))]
    source.close()


def test_a_stream_whose_name_is_not_utf8_is_skipped(camera, tmp_path):
    (tmp_path / "list.txt").write_bytes(b"0\n\xff.mp4\n")  # OpenCV would crash
    source = open_source(str(tmp_path / "list.txt"), 64)
    assert source.skipped == [r"video \udcff.mp4: OpenCV reads names in UTF-8 only; rename the file"]
    source.close()


def test_streams_of_unequal_shape_share_a_square(tmp_path, caplog):
    videos = [
        make_video(tmp_path / "wide.avi", 1, size=(128, 32)),
        make_video(tmp_path / "tall.avi", 1, size=(64, 128)),
    ]
    _, images, *_ = next(iter(LoadStreams(videos, 64, 32)))
    assert images.shape == (2, 3, 64, 64) and "different shapes" in caplog.text


def test_streams_are_read_from_a_list_by_default_streams_txt(camera, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"source list streams\.txt does not exist"):
        LoadStreams()
    for name in ("streams.txt", "cameras"):
        (tmp_path / name).write_text("0\nrtsp://nowhere/1\n")
    for arguments in ((), ("streams.txt", 64), (tmp_path / "cameras", 64)):
        camera.opened.clear()  # so that the camera is a new one
        source = LoadStreams(*arguments)
        assert [stream.source for stream in source.streams] == ["0"]
        assert "rtsp://nowhere/1" in source.skipped[0]
        source.close()


def test_the_address_of_a_text_file_is_a_stream_and_a_video_file_is_no_list(tmp_path):
    with pytest.raises(UserError, match=r"no stream of 1 source .*http://127\.0\.0\.1:1/a\.txt"):
        LoadStreams("http://127.0.0.1:1/a.txt", 64)
    source = LoadStreams(make_video(tmp_path / "a.avi", 2), 64)
    assert len(list(source)) == 2
    source.close()


def test_names_of_streams_differ_and_are_safe_without_passwords(camera):
    source = LoadStreams(["0", "0"], 64, 32)
    assert [s.name for s in source.streams] == ["0", "0_2"]
    source.close()
    assert clean_name("rtsp://me:secret@10.0.0.1:554/ch?1&x") == "rtsp___10.0.0.1_554_ch_1_x"
