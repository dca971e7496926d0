"""Images: written by lines, read by kernels, refused wherever a buffer is wanted."""

import numpy as np
import pytest

from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import LINE_NBYTES, LINE_TEXELS, MAX_LINES, Binding
from wgpu_backend.errors import DeviceError
from wgpu_backend.shader import load
from wgpu_backend.wgsl_source import Inline

COPY = """
@group(0) @binding(0) var x: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(0) var<storage, read_write> y: array<vec4<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] = textureLoad(x, vec2<u32>(id.x % 1024u, id.x / 1024u));
}
"""


pytestmark = pytest.mark.gpu


@pytest.fixture
def shader():
    return load(Inline("copy", COPY))


def read_back(device, shader, image):
    y = device.buffer(image.nbytes, purpose="activations")
    groups = (image.lines * LINE_TEXELS // 64, 1, 1)
    bindings = (Binding(image), Binding(y))
    program = device.program([Dispatch(device.pipeline(shader), bindings, groups)])
    program.replay().wait()
    program.close()
    values = np.frombuffer(device.read(y), np.uint8)
    y.release()
    return values


def test_a_shader_tells_its_images(shader):
    assert [(b.name, b.index, b.access) for b in shader.bindings] == [
        ("x", 0, "image"),
        ("y", 1, "read_write"),
    ]


def test_kernels_read_what_was_written_by_lines(fresh, shader, rng):
    data = rng.integers(0, 256, (5, LINE_NBYTES), np.uint8)
    image = fresh.image(5, purpose="weights", label="picture")
    fresh.write_lines(image, data)
    fresh.write_lines(image, data[::-1][:2], 3)
    expected = np.concatenate([data[:3], data[::-1][:2]])
    assert (read_back(fresh, shader, image) == expected.reshape(-1)).all()
    image.release()


def test_an_image_is_accounted_for_and_given_back_at_once(fresh):
    before = fresh.memory_report().nbytes
    image = fresh.image(3, purpose="weights")
    assert fresh.memory_report().nbytes - before == 3 * LINE_NBYTES
    image.release()
    image.release()
    assert fresh.memory_report().nbytes == before


@pytest.mark.parametrize("lines", [0, -1, MAX_LINES + 1])
def test_lines_have_bounds(fresh, lines):
    with pytest.raises(DeviceError, match=f"{lines} lines, needs 1 to {MAX_LINES}"):
        fresh.image(lines, purpose="weights")


def test_bytes_are_whole_lines_inside_the_image(fresh):
    image = fresh.image(2, purpose="weights", label="picture")
    with pytest.raises(DeviceError, match=f"picture: 100 bytes, lines have {LINE_NBYTES}"):
        fresh.write_lines(image, bytes(100))
    with pytest.raises(DeviceError, match="picture"):
        fresh.write_lines(image, bytes(2 * LINE_NBYTES), 1)
    image.release()
    with pytest.raises(DeviceError, match="after its release"):
        fresh.write_lines(image, bytes(LINE_NBYTES))


def test_an_image_is_no_buffer_nor_a_buffer_an_image(fresh, shader):
    image = fresh.image(1, purpose="weights", label="picture")
    y = fresh.buffer(LINE_NBYTES, purpose="activations", label="values")
    for wrong in ((Binding(y), Binding(y)), (Binding(image), Binding(image))):
        with pytest.raises(DeviceError, match="needs the other kind"):
            fresh.program([Dispatch(fresh.pipeline(shader), wrong, (1, 1, 1))])
    for touch in (
        lambda: fresh.write(image, bytes(16)),
        lambda: fresh.read(image),
        lambda: fresh.clear(image),
    ):
        with pytest.raises(DeviceError, match="is an image"):
            touch()
    image.release()
    y.release()
