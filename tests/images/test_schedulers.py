"""Schedulers step as diffusers' do, of which data/schedulers.npz has timesteps and each step."""

import json
from pathlib import Path

import numpy as np
import pytest

from wgpu_backend.errors import ModelError, OptionError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.images.schedule import KEPT, NOISE, OUTPUT, alphas_cumprod, beta_quantiles
from wgpu_backend.images.schedulers import (
    CLASSES,
    NAMES,
    Scheduler,
    first_step,
    klein_mu,
    linear_mu,
    linear_sigmas,
)

STORED = np.load(Path(__file__).with_name("data") / "schedulers.npz")
PIPELINES = sorted({key.split("/")[0] for key in STORED})
# Steps are rounded to f32 a few times, by coefficients up to 15 at the noisy end: (15 · 6e-8)².
LIMIT = 1e-12
TOKENS = 16  # of the transformers of pictures of 64 x 64
DDIM = {"clip_sample": False}


def nmse(made, known):
    made, known = np.float64(made), np.float64(known)
    return ((made - known) ** 2).sum() / (known**2).sum()


def stored(name):
    prefix = name + "/"
    return {key.removeprefix(prefix): STORED[key] for key in STORED if key.startswith(prefix)}


def scheduler_of(arrays):
    config = json.loads(arrays["config"].tobytes())
    return Scheduler(config["_class_name"], Settings("scheduler_config.json", config))


def planned(name, arrays):
    scheduler, arguments = scheduler_of(arrays), json.loads(arrays["arguments"].tobytes())
    steps, given = arguments["steps"], {}
    if "Flow" in scheduler.class_name:
        klein = "klein" in name
        mu = klein_mu(TOKENS, steps) if klein else linear_mu(scheduler.settings, TOKENS)
        given = {"mu": mu} | ({} if name == "sd3" else {"sigmas": linear_sigmas(steps)})
    if "img2img" in name:
        given["first"] = first_step(steps, arguments["strength"])
    return scheduler.plan(steps, **given)


@pytest.mark.parametrize("name", PIPELINES)
def test_timesteps_and_noise_levels_are_those_of_diffusers(name):
    arrays = stored(name)
    schedule = planned(name, arrays)
    # Both are rounded to f32; exponentials differ by their last bit between libraries.
    np.testing.assert_allclose(schedule.timesteps, arrays["scheduler.timesteps"], rtol=2e-7)
    assert schedule.timesteps.dtype == arrays["scheduler.timesteps"].dtype
    if schedule.sigmas is not None:
        np.testing.assert_allclose(schedule.sigmas, arrays["scheduler.sigmas"], rtol=2e-7)


@pytest.mark.parametrize("name", PIPELINES)
def test_each_step_makes_the_sample_that_diffusers_makes(name):
    arrays = stored(name)
    schedule = planned(name, arrays)
    for count, i in enumerate(schedule.steps):
        step = f"step{count}.scheduler."
        sample, output = arrays[step + "sample"], arrays[step + "model_output"]
        made = schedule.step(output, i, sample, arrays.get(step + "noise"))
        assert made.dtype == np.float32
        assert nmse(made, arrays[step + "prev_sample"]) <= LIMIT
        assert schedule.uses_noise(i) == (step + "noise" in arrays and i < len(schedule) - 1)


def test_shares_of_pictures_are_bit_for_bit_those_of_torch():
    arrays = stored("sd15")
    made = alphas_cumprod(scheduler_of(arrays).settings)
    np.testing.assert_array_equal(made, arrays["scheduler.alphas_cumprod"])


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "flow-euler"])
def test_a_network_that_knows_the_picture_brings_it_back(rng, name, spacing, kind):
    """Whatever the scheduler, right outputs lead to the picture but for what noise is left."""
    if name == "pndm" and kind == "sample":
        pytest.skip("PNDM is not defined for networks that predict the picture")
    config = DDIM | {"prediction_type": kind, "timestep_spacing": spacing, "steps_offset": 1}
    settings = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
    base = Scheduler("DDIMScheduler", Settings("c", config | settings))
    schedule = base.select(name).plan(9)
    picture, noise = rng.standard_normal((2, 3, 33))
    x = schedule.add_noise(picture, noise, schedule.first)
    for i in schedule.steps:
        kept, added = schedule.noise_scales[i]
        if name == "pndm" and i == 1:  # made from the beginning of the step before
            kept, added = schedule.noise_scales[1]
        share = (kept**2 + added**2) ** 0.5
        a, s = kept / share, added / share
        now = (x - kept * picture) / added
        output = {"epsilon": now, "v_prediction": a * now - s * picture, "sample": picture}[kind]
        x = schedule.step(output, i, x, rng.standard_normal(x.shape))
    left = 0.05 if name in ("ddim", "pndm") else 1e-12  # these end before all noise is gone
    assert nmse(x, picture) < left


@pytest.mark.parametrize("name", ["euler", "dpmpp-2m", "pndm", "dpmpp-2m-sde", "ddim"])
def test_coefficients_say_what_a_step_does(rng, name):
    schedule = Scheduler("DDIMScheduler", Settings("c", DDIM)).select(name).plan(6, eta=0.5)
    kept = [np.zeros(7) for _ in range(schedule.table.shape[1] - 1)]
    x = y = rng.standard_normal(7)
    for i in schedule.steps:
        output, noise = rng.standard_normal((2, 7))
        rows = schedule.coefficients(i)
        y, *kept = rows @ np.array([y, output, noise, *kept])
        x = schedule.step(output, i, x, noise)
        np.testing.assert_allclose(x, y, rtol=1e-12)


@pytest.mark.parametrize(("i", "count"), [(2, 2), (3, 3), (4, 4), (7, 4)])
def test_steps_of_pndm_integrate_polynomials(i, count):
    """With n outputs before, at distances 0 to n - 1, the next stretch of degree n - 1 is exact."""
    schedule = Scheduler("DDIMScheduler", Settings("c", DDIM)).select("pndm").plan(9)
    row = schedule.coefficients(i)[0]
    weights = np.array([row[OUTPUT], *row[KEPT : KEPT + 3]])[:count]
    assert not row[KEPT + count - 1 :].any()
    places = -np.arange(count)
    for power in range(count):
        integral = 1 / (power + 1)
        assert weights @ places**power / weights.sum() == pytest.approx(integral)


def test_a_plan_that_begins_later_knows_nothing_of_steps_before(rng):
    base = Scheduler("DDIMScheduler", Settings("c", DDIM)).select("dpmpp-2m")
    whole, late = base.plan(8), base.plan(8, first=3)
    assert late.steps == range(3, 8)
    np.testing.assert_array_equal(late.timesteps, whole.timesteps)
    assert whole.coefficients(3)[0, NOISE + 1] != 0
    assert late.coefficients(3)[0, NOISE + 1] == 0
    np.testing.assert_array_equal(late.coefficients(5), whole.coefficients(5))


def test_a_plan_can_be_run_again(rng):
    schedule = Scheduler("DDIMScheduler", Settings("c", DDIM)).select("pndm").plan(5)
    outputs = rng.standard_normal((6, 4))

    def run():
        x = np.ones(4)
        for i in schedule.steps:
            x = schedule.step(outputs[i], i, x)
        return x

    np.testing.assert_array_equal(run(), run())


@pytest.mark.parametrize(
    ("steps", "strength", "whole", "first"),
    [
        (3, 0.7, True, 1),
        (3, 0.7, False, 0),
        (50, 0.8, True, 10),
        (50, 0.8, False, 10),
        (4, 1, True, 0),
    ],
)
def test_strength_says_where_image_to_image_begins(steps, strength, whole, first):
    assert first_step(steps, strength, whole=whole) == first


def test_shifts_for_known_sizes():
    assert linear_mu(Settings("c", {}), 256) == pytest.approx(0.5)
    assert linear_mu(Settings("c", {}), 4096) == pytest.approx(1.15)
    assert klein_mu(5000, 4) == klein_mu(5000, 40)  # long ones do not depend on steps
    assert klein_mu(16, 3) == pytest.approx(1.95, abs=0.005)


@pytest.mark.parametrize("steps", [1, 2, 9, 50])
def test_quantiles_of_the_beta_distribution(steps):
    """Shares below them, summed over a million places, are those that were asked for."""
    made = beta_quantiles(steps)
    angles = (np.arange(1_000_000) + 0.5) / 1_000_000 * np.pi / 2  # x = sin², evenly near the ends
    x, density = np.sin(angles) ** 2, (np.sin(angles) * np.cos(angles)) ** 0.2
    shares = np.interp(made, x, np.cumsum(density) / density.sum())
    np.testing.assert_allclose(shares, 1 - np.linspace(0, 1, steps), atol=1e-5)


def test_what_cannot_be_planned_is_told():
    ddim = Scheduler("DDIMScheduler", Settings("c.json", DDIM))
    flow = Scheduler("FlowMatchEulerDiscreteScheduler", Settings("c", {}))
    dynamic = Scheduler(flow.class_name, Settings("c", {"use_dynamic_shifting": True}))

    def of(class_name, **settings):
        return Scheduler(class_name, Settings("c.json", settings)).plan(3)

    for call, error, message in (
        (lambda: ddim.plan(0), OptionError, "steps is 0, needs 1 to"),
        (lambda: ddim.plan(1001), OptionError, "steps is 1001, the model was trained with 1000"),
        (lambda: ddim.plan(3, first=3), OptionError, "first step is 3 of 3, needs 0 to 2"),
        (lambda: ddim.select("lms"), OptionError, "scheduler is 'lms', needs one of ddim"),
        (lambda: ddim.select("flow-euler"), OptionError, "one is for flow matching"),
        (lambda: flow.select("euler"), OptionError, "one is for flow matching"),
        (lambda: dynamic.plan(3), OptionError, "give mu"),
        (lambda: flow.plan(3, sigmas=[1.0]), OptionError, "1 sigmas for 3 steps"),
        (
            lambda: first_step(4, 0.1),
            OptionError,
            "strength is 0.1 of 4 steps, needs at least 0.25",
        ),
        (lambda: first_step(4, 1.1), OptionError, "at most 1"),
        (lambda: of("LMSDiscreteScheduler"), ModelError, "needs one of DDIMScheduler"),
        (lambda: of("DDIMScheduler"), ModelError, "'clip_sample' is true"),
        (lambda: of("PNDMScheduler"), ModelError, "'skip_prk_steps' is false"),
        (
            lambda: of("EulerDiscreteScheduler", beta_schedule="x"),
            ModelError,
            "'x', needs one of lin",
        ),
        (
            lambda: of("EulerDiscreteScheduler", prediction_type="x"),
            ModelError,
            "'x', needs one of e",
        ),
        (
            lambda: of("DPMSolverMultistepScheduler", use_lu_lambdas=True),
            ModelError,
            "is true, needs",
        ),
        (lambda: of("DPMSolverMultistepScheduler", solver_order=3), ModelError, "neither 1 nor 2"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_step_that_adds_noise_needs_it():
    schedule = Scheduler("DDIMScheduler", Settings("c", DDIM)).select("euler-a").plan(3)
    with pytest.raises(OptionError, match="step 0 adds noise, give an array of it"):
        schedule.step(np.ones(2), 0, np.ones(2))


@pytest.mark.parametrize("solver", ["midpoint", "heun"])
def test_steps_between_equal_levels_of_noise_change_nothing(solver):
    """Karras' levels end where training has least noise, which may be left behind the last step."""
    settings = {"final_sigmas_type": "sigma_min", "use_karras_sigmas": True}
    config = Settings("c", settings | {"solver_type": solver, "lower_order_final": False})
    schedule = Scheduler("DPMSolverMultistepScheduler", config).plan(20)
    assert np.isfinite(schedule.table).all()
    same = schedule.sigmas[1:] == schedule.sigmas[:-1]
    assert same.sum() == 1
    np.testing.assert_array_equal(schedule.table[same][0, 0], [1, 0, 0, 0])


@pytest.mark.parametrize("class_name", CLASSES)
def test_one_step_is_enough(class_name):
    settings = Settings("c", DDIM | {"skip_prk_steps": True})
    schedule = Scheduler(class_name, settings).plan(1)
    assert len(schedule) == 1
    assert np.isfinite(schedule.table).all()
