"""Fourier transforms against NumPy's in float64."""

from typing import Any

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.errors import DTypeError, OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("session")

LENGTHS = (1, 2, 17, 30, 97, 143, 1000, 1024, 6144)


@pytest.fixture
def z(rng: np.random.Generator) -> Any:
    """Complex numbers (3, 4, 30)."""
    parts = rng.standard_normal((2, 3, 4, 30))
    return (parts[0] + 1j * parts[1]).astype("c8")


def same(ours: Any, theirs: Any) -> None:
    """Errors are small beside the root mean square, and types those of single precision."""
    wanted = np.asarray(theirs)
    assert ours.shape == wanted.shape
    assert ours.numpy().dtype == ("c8" if wanted.dtype.kind == "c" else "f4")
    size = np.sqrt((np.abs(wanted) ** 2).mean()) if wanted.size else 1
    assert np.abs(ours.numpy() - wanted).max(initial=0) <= 5e-6 * max(size, 1e-9)


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_every_kind_of_length(length, rng):
    parts = rng.standard_normal((2, 2, length))
    values = (parts[0] + 1j * parts[1]).astype("c8")
    x, wide = wx.array(values), values.astype("c16")
    same(wx.fft.fft(x), np.fft.fft(wide))
    same(wx.fft.ifft(x), np.fft.ifft(wide))
    same(wx.fft.rfft(wx.real(x)), np.fft.rfft(wide.real))


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("n", [None, 3, 7, 34])
def test_axes_lengths_and_norms(z, norm, axis, n):
    x, wide, options = wx.array(z), z.astype("c16"), {"n": n, "axis": axis, "norm": norm}
    for name in ("fft", "ifft", "irfft", "hfft"):
        same(getattr(wx.fft, name)(x, **options), getattr(np.fft, name)(wide, **options))
    for name in ("rfft", "ihfft"):
        ours = getattr(wx.fft, name)(wx.real(x), **options)
        same(ours, getattr(np.fft, name)(wide.real, **options))


@pytest.mark.slow
def test_several_axes(z):
    x, wide = wx.array(z), z.astype("c16")
    for options in ({}, {"axes": (0, 2)}, {"axes": (0, 1), "s": (5, 2)}, {"norm": "ortho"}):
        for name in ("fftn", "ifftn", "irfftn"):
            same(getattr(wx.fft, name)(x, **options), getattr(np.fft, name)(wide, **options))
        same(wx.fft.rfftn(wx.real(x), **options), np.fft.rfftn(wide.real, **options))
    for axes in ((1,), (-1,), (0, 1, 2)):
        same(wx.fft.irfftn(x, axes=axes), np.fft.irfftn(wide, axes=axes))
    same(wx.fft.irfftn(x[0, 0], s=(5,)), np.fft.irfft(wide[0, 0], 5))
    for name in ("fft2", "ifft2", "irfft2"):
        same(getattr(wx.fft, name)(x), getattr(np.fft, name)(wide))
    same(wx.fft.rfft2(wx.imag(x)), np.fft.rfft2(wide.imag))


def test_frequencies_and_shifts(z):
    for n in (1, 8, 9):
        same(wx.fft.fftfreq(n, d=0.5), np.fft.fftfreq(n, 0.5))
        same(wx.fft.rfftfreq(n), np.fft.rfftfreq(n))
    for axes in (None, 1, (0, 2)):
        same(wx.fft.fftshift(wx.array(z), axes=axes), np.fft.fftshift(z, axes))
        same(wx.fft.ifftshift(wx.array(z), axes=axes), np.fft.ifftshift(z, axes))


def test_views_other_types_and_compiled_functions(z, rng):
    x = wx.array(z)
    same(wx.fft.fft(x[1:, ::2, ::-1]), np.fft.fft(z.astype("c16")[1:, ::2, ::-1]))
    same(wx.fft.fft(x.T), np.fft.fft(z.astype("c16").T))
    whole = rng.integers(-9, 9, (2, 12))
    same(wx.fft.fft(wx.array(whole)), np.fft.fft(whole))
    same(wx.fft.rfft(wx.array(whole, dtype=wx.float16)), np.fft.rfft(whole))
    same(wx.compile(lambda a: wx.fft.ifft(wx.fft.fft(a) * 2))(x), z.astype("c16") * 2)
    assert wx.fft.fft(wx.zeros((0, 4))).shape == (0, 4)


def test_what_makes_no_sense_is_refused(z):
    with pytest.raises(ShapeError, match="n is 0, needs 1 or more"):
        wx.fft.fft(wx.zeros((2, 0)))
    with pytest.raises(ShapeError, match="n is 0, needs 1 or more"):
        wx.fft.fft(wx.zeros(4), n=0)
    with pytest.raises(ShapeError, match="axis 3"):
        wx.fft.fft(wx.zeros(4), axis=3)
    with pytest.raises(OptionError, match="middle"):
        wx.fft.fft(wx.zeros(4), norm="middle")
    with pytest.raises(DTypeError, match="complex64"):
        wx.fft.rfft(wx.array(z))
    with pytest.raises(ShapeError, match="needs one length for each axis"):
        wx.fft.fftn(wx.array(z), s=(2,), axes=(0, 1))
