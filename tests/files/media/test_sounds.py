"""Sound files: every encoding of WAV, other formats by soundfile, limits, damage, resampling."""

import contextlib
import io
import math
import struct
import sys
import wave

import numpy as np
import pytest

from wgpu_backend.errors import MediaError, OptionError
from wgpu_backend.files.media import sounds
from wgpu_backend.files.media.sounds import load_sound, read_sound, resample

FORMAT = {"u1": 1, "<i2": 1, "i3": 1, "<i4": 1, "<f4": 3, "<f8": 3}


def tone(rate: int, seconds: float, hertz: float) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def encode(values: np.ndarray, kind: str) -> bytes:
    if kind == "u1":
        return (np.round(values * 128) + 128).astype(np.uint8).tobytes()
    if kind == "i3":
        wide = np.round(values * 2**23).astype("<i4").view(np.uint8).reshape(-1, 4)
        return wide[:, :3].tobytes()
    if kind[1] == "i":
        return np.round(values * 2.0 ** (8 * int(kind[2]) - 1)).astype(kind).tobytes()
    return values.astype(kind).tobytes()


def riff(*chunks: tuple[bytes, bytes], magic: bytes = b"RIFF") -> bytes:
    body = b"".join(k + struct.pack("<I", len(d)) + d + b"\0" * (len(d) % 2) for k, d in chunks)
    return magic + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def form(kind: str, channels: int, rate: int, tag: int | None = None) -> bytes:
    width = int(kind[-1])
    tag = FORMAT[kind] if tag is None else tag
    frame = width * channels
    return struct.pack("<HHIIHH", tag, channels, rate, 0, frame, 8 * width)


def wav(values: np.ndarray, kind: str = "<i2", channels: int = 1, rate: int = 16_000) -> bytes:
    return riff((b"fmt ", form(kind, channels, rate)), (b"data", encode(values, kind)))


STEP = {"u1": 2**-8, "<i2": 2**-16, "i3": 2**-24, "<i4": 2**-24, "<f4": 2**-24, "<f8": 2**-24}


@pytest.mark.parametrize("kind", FORMAT)
def test_encodings_of_wav(kind: str):
    values = tone(16_000, 0.05, 440)
    sound = read_sound(wav(values, kind))
    assert sound.rate == 16_000
    assert sound.samples.dtype == np.float32
    np.testing.assert_allclose(sound.samples, values, rtol=0, atol=STEP[kind] * 1.01)


def test_what_pythons_own_module_writes(tmp_path):
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8_000)
        file.writeframes(np.array([[1000, 3000], [-4, 4], [32767, 32767]], "<i2").tobytes())
    for source in (path, str(path), path.read_bytes()):
        sound = read_sound(source)
        assert (sound.rate, sound.seconds) == (8_000, 3 / 8_000)
        np.testing.assert_allclose(sound.samples * 32768, [2000, 0, 32767])


def test_the_format_of_an_extensible_header():
    body = form("<f4", 1, 16_000, 0xFFFE) + struct.pack("<HHI", 22, 32, 4) + struct.pack("<H", 3)
    data = riff((b"fmt ", body + bytes(14)), (b"data", encode(np.array([0.25, -1]), "<f4")))
    assert read_sound(data).samples.tolist() == [0.25, -1]


def test_chunks_before_the_samples_and_odd_lengths():
    data = riff(
        (b"LIST", b"odd"), (b"fmt ", form("u1", 1, 16_000)), (b"data", bytes([128, 255, 0]))
    )
    assert read_sound(data).samples.tolist() == [0, 127 / 128, -1]


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_length_that_the_writer_did_not_know(size: int):
    data = bytearray(wav(np.array([0.5, -0.5])))
    data[40:44] = struct.pack("<I", size)
    assert read_sound(bytes(data)).samples.tolist() == [0.5, -0.5]


def test_a_64_bit_length():
    sizes = struct.pack("<QQQI", 0, 4, 2, 0)
    data = riff((b"ds64", sizes), (b"fmt ", form("<i2", 1, 16_000)), (b"data", b""), magic=b"RF64")
    data = data[:-4] + b"\xff\xff\xff\xff" + encode(np.array([0.5, -0.5]), "<i2")
    assert read_sound(data).samples.tolist() == [0.5, -0.5]


WHOLE = wav(tone(16_000, 0.1, 440))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"not a sound at all", "not a sound, needs WAV, FLAC, MP3, OGG, AIFF"),
        (b"\0\0\0 ftypM4A and more", "MP4/M4A is not supported"),
        (WHOLE[:16], "ends before its format"),
        (WHOLE[:40], r"ends before its samples"),
        (WHOLE[:-10], "truncated WAV: 3190 bytes of samples, its header declares 3200"),
        (riff((b"data", b"\0\0")), "samples come before their format"),
        (riff(*[(b"junk", b"")] * 10_001), "10000 chunks, none of them its samples"),
        (wav(np.array([0, 1e300]), "<f8"), "sample 1 is inf, needs finite"),
        (riff((b"fmt ", b"\1\0"), (b"data", b"\0\0")), "2 bytes, needs 16"),
        (wav(np.zeros(0)), "0 samples, needs at least 1"),
        (wav(np.zeros(4), rate=20), "20 samples per second, needs 1000 to 768000"),
        (wav(np.zeros(4), rate=4_000_000_000), "4000000000 samples per second"),
        (wav(np.zeros(65), channels=65), "65 channels, needs 1 to 64"),
        (wav(np.zeros(4), channels=0), "0 channels"),
        (wav(np.array([0, np.inf]), "<f4"), "sample 1 is inf, needs finite"),
        (riff((b"fmt ", form("<i2", 3, 16_000)[:12] + b"\7\0\x10\0"), (b"data", b"\0" * 14)),
         "16 bits in frames of 7 bytes for 3 channels"),
    ],
)  # fmt: skip
def test_bad_files_are_named(data: bytes, message: str):
    with pytest.raises(MediaError, match=message) as caught:
        read_sound(data)
    assert isinstance(caught.value, OptionError)
    assert "\n" not in str(caught.value)


def test_no_file_and_no_source(tmp_path):
    with pytest.raises(MediaError, match=r"none\.wav: No such file"):
        read_sound(tmp_path / "none.wav")
    with pytest.raises(MediaError, match="Is a directory"):
        read_sound(tmp_path)
    with pytest.raises(MediaError, match="null"):
        read_sound("a\0b")
    with pytest.raises(MediaError, match="list, needs a path, bytes or an array"):
        load_sound([1.0])  # pyright: ignore


def test_limits_hold_before_samples_are_read(monkeypatch):
    with pytest.raises(MediaError, match=r"0\.1 seconds, needs at most 0\.05"):
        load_sound(WHOLE, max_seconds=0.05)
    with pytest.raises(MediaError, match=r"2\.0 seconds, needs at most 1"):
        load_sound(np.zeros(32_000, np.float32), max_seconds=1)
    monkeypatch.setattr(sounds, "MAX_BYTES", 100)
    with pytest.raises(MediaError, match="3244 bytes, needs at most 100"):
        load_sound(WHOLE)


def test_arrays():
    ints = np.array([[16384, -16384], [16384, 0]], np.int16)
    assert load_sound(ints).tolist() == [0, 0.25]
    assert load_sound(np.array([0.5, 1.0])).dtype == np.float32
    for bad in (np.zeros(0), np.zeros((2, 2, 2)), np.zeros(3, bool), np.zeros((2, 900))):
        with pytest.raises(MediaError, match="sound: an array of"):
            load_sound(bad)
    with pytest.raises(MediaError, match="finite"):
        load_sound(np.array([0, math.nan]))


# Resampling.


@pytest.mark.parametrize("rates", [(44_100, 16_000), (48_000, 16_000), (8_000, 16_000)])
def test_tones_keep_frequency_and_phase(rates: tuple[int, int]):
    a, b = rates
    low = min(rates) / 2
    for hertz in (110.0, 0.5 * low, 0.9 * low):
        y = resample(tone(a, 0.5, hertz).astype(np.float32), a, b)
        assert len(y) == b // 2
        middle = slice(len(y) // 8, -len(y) // 8)
        np.testing.assert_allclose(y[middle], tone(b, 0.5, hertz)[middle], rtol=0, atol=1e-5)


def test_tones_above_the_result_vanish():
    for hertz in (8_000.0, 9_000.0, 15_000.0):
        y = resample(tone(44_100, 0.5, hertz).astype(np.float32), 44_100, 16_000)
        assert np.abs(y[1000:-1000]).max() < 1e-5


def test_lengths_and_the_same_rate():
    x = np.ones(1000, np.float32)
    assert resample(x, 16_000, 16_000) is x
    assert len(resample(x, 11_025, 16_000)) == math.ceil(1000 * 16_000 / 11_025)
    assert len(resample(x[:1], 48_000, 16_000)) == 1
    # A constant stays one, away from the ends.
    np.testing.assert_allclose(resample(x, 12_345, 16_000)[300:-300], 1, atol=1e-4)


# Formats of the package soundfile.

OTHERS = {
    "FLAC": ("FLAC", "PCM_16", 2e-5),
    "OGG": ("OGG", "VORBIS", 0.05),
    "MP3": ("MP3", "MPEG_LAYER_III", 0.05),
    "AIFF": ("AIFF", "PCM_24", 1e-6),
    "compressed WAV": ("WAV", "ULAW", 0.02),
}


def write(kind: str, values: np.ndarray, rate: int) -> bytes:
    library = pytest.importorskip("soundfile", reason="soundfile is not installed")
    file = io.BytesIO()
    name, subtype, _ = OTHERS[kind]
    library.write(file, values, rate, format=name, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("kind", OTHERS)
def test_other_formats(kind: str):
    values = tone(48_000, 0.5, 440)
    data = write(kind, np.stack([values, values], 1), 48_000)
    sound = read_sound(data)
    assert sound.rate == 48_000
    # An MP3's coder adds samples before and after.
    extra = len(sound.samples) - len(values)
    assert 0 <= extra <= 3000
    assert extra == 0 or kind == "MP3"
    if kind != "MP3":
        np.testing.assert_allclose(sound.samples, values, rtol=0, atol=OTHERS[kind][2])
    y = load_sound(data)
    power = np.abs(np.fft.rfft(y * np.hanning(len(y))))
    assert power.argmax() * 16_000 / len(y) == pytest.approx(440, abs=4)


@pytest.mark.parametrize("kind", OTHERS)
def test_damage_in_other_formats(kind: str):
    data = write(kind, tone(16_000, 2, 440), 16_000)
    for damaged in (data[:20], data[:4] + b"\xff" * 300, data[: len(data) // 2]):
        sound = None
        with contextlib.suppress(MediaError):
            sound = read_sound(damaged)
        # Half a file of packets is a shorter sound, where no header has its length.
        assert sound is None or (kind != "FLAC" and sound.seconds < 2.1)
    with pytest.raises(MediaError, match=r"2\.\d seconds, needs at most 1"):
        read_sound(data, max_seconds=1)


@pytest.mark.parametrize("start", [4, 400])
def test_damage_is_not_printed_by_the_mpeg_decoder(start: int, capfd: pytest.CaptureFixture[str]):
    data = write("MP3", tone(16_000, 2, 440), 16_000)
    with pytest.raises(MediaError, match="damaged MP3: no frames of sound"):
        read_sound(data[:start] + bytes(4096))
    sys.stderr.write("another line\n")
    assert capfd.readouterr().err == "another line\n"


def test_without_soundfile(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MediaError, match=r"FLAC needs the package soundfile .*\[audio\]"):
        read_sound(b"fLaC" + bytes(40))
    with pytest.raises(MediaError, match="compressed WAV needs"):
        read_sound(riff((b"fmt ", form("u1", 1, 8_000, 7)), (b"data", bytes(8))))


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"ID3\4" + bytes(12), "MP3"),
        (b"\xff\xfb\x90\x00" + bytes(12), "MP3"),
        (b"\xff\xf1" + bytes(14), None),  # AAC: its layer is 0
        (b"OggS" + bytes(12), "OGG"),
        (b"FORM\0\0\0\0AIFC", "AIFF"),
        (b"RIFF\0\0\0\0AVI ", None),
        (b"\x1aE\xdf\xa3" + bytes(12), "Matroska/WebM"),
    ],
)
def test_formats_by_their_first_bytes(head: bytes, kind: str | None):
    assert sounds._sniff(head) == kind
