"""Textures: written by rows, read by kernels, refused wherever a buffer is wanted."""

import numpy as np
import pytest

from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.wgsl.module import load
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import MAX_TEXEL_ROWS, ROW_TEXELS, TEXEL_ROW_NBYTES
from wgpu_backend.graph.wgsl_source import Inline

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


def read_back(device, shader, texture):
    y = device.buffer(texture.nbytes, purpose="activations")
    groups = (texture.rows * ROW_TEXELS // 64, 1, 1)
    bindings = (Binding(texture), Binding(y))
    program = device.program([Dispatch(device.pipeline(shader), bindings, groups)])
    program.replay().wait()
    program.close()
    values = np.frombuffer(device.read(y), np.uint8)
    y.release()
    return values


def test_a_shader_tells_its_textures(shader):
    assert [(b.name, b.index, b.access) for b in shader.bindings] == [
        ("x", 0, "texture"),
        ("y", 1, "read_write"),
    ]


def test_kernels_read_what_was_written_by_rows(fresh, shader, rng):
    data = rng.integers(0, 256, (5, TEXEL_ROW_NBYTES), np.uint8)
    texture = fresh.texture(5, purpose="weights", label="picture")
    fresh.write_texel_rows(texture, data)
    fresh.write_texel_rows(texture, data[::-1][:2], 3)
    expected = np.concatenate([data[:3], data[::-1][:2]])
    assert (read_back(fresh, shader, texture) == expected.reshape(-1)).all()
    texture.release()


def test_a_texture_is_accounted_for_and_given_back_at_once(fresh):
    before = fresh.memory_report().nbytes
    texture = fresh.texture(3, purpose="weights")
    assert fresh.memory_report().nbytes - before == 3 * TEXEL_ROW_NBYTES
    texture.release()
    texture.release()
    assert fresh.memory_report().nbytes == before


@pytest.mark.parametrize("rows", [0, -1, MAX_TEXEL_ROWS + 1])
def test_rows_have_bounds(fresh, rows):
    with pytest.raises(DeviceError, match=f"{rows} rows of texels, needs 1 to {MAX_TEXEL_ROWS}"):
        fresh.texture(rows, purpose="weights")


def test_bytes_are_whole_rows_inside_the_texture(fresh):
    texture = fresh.texture(2, purpose="weights", label="picture")
    with pytest.raises(
        DeviceError, match=f"picture: 100 bytes, rows of texels have {TEXEL_ROW_NBYTES}"
    ):
        fresh.write_texel_rows(texture, bytes(100))
    with pytest.raises(DeviceError, match="picture"):
        fresh.write_texel_rows(texture, bytes(2 * TEXEL_ROW_NBYTES), 1)
    texture.release()
    with pytest.raises(DeviceError, match="after its release"):
        fresh.write_texel_rows(texture, bytes(TEXEL_ROW_NBYTES))


def test_a_texture_is_no_buffer_nor_a_buffer_a_texture(fresh, shader):
    texture = fresh.texture(1, purpose="weights", label="picture")
    y = fresh.buffer(TEXEL_ROW_NBYTES, purpose="activations", label="values")
    for wrong in ((Binding(y), Binding(y)), (Binding(texture), Binding(texture))):
        with pytest.raises(DeviceError, match="needs the other kind"):
            fresh.program([Dispatch(fresh.pipeline(shader), wrong, (1, 1, 1))])
    for touch in (
        lambda: fresh.write(texture, bytes(16)),
        lambda: fresh.read(texture),
        lambda: fresh.clear(texture),
    ):
        with pytest.raises(DeviceError, match="is a texture"):
            touch()
    texture.release()
    y.release()
