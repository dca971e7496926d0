"""When models are loaded, and which of them go; with models that only pretend."""

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.patience import PATIENCE

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from wgpu_backend.errors import BackendError, OptionError, OutOfMemory
from wgpu_backend.server.core.model_pool import ModelPool
from wgpu_backend.server.worker.estimate import MemoryEstimate
from wgpu_backend.server.worker.remote import WorkerModel


class Model(WorkerModel):
    """Nothing but what a pool asks for."""

    def __init__(self, name, num_ctx):
        self.name, self.num_ctx, self.engine, self.nbytes = name, num_ctx or 64, None, 10
        self.closed, self.gone = False, None

    @property
    def lost(self):
        return self.gone

    def set_lora_scales(self, scales):
        self.scales = scales

    def close(self):
        self.closed = True


@dataclass
class Entry:
    name: str
    digest: str = "a"


@dataclass
class Stored:
    entry: Entry


@dataclass
class Machine:
    """Opens models, and counts their memory."""

    memory: int = 1000
    opened: list = field(default_factory=list)
    hold: asyncio.Event | None = None
    failure: Exception | None = None

    def __call__(self, stored, num_ctx):
        if self.hold is not None:
            asyncio.run_coroutine_threadsafe(self.hold.wait(), self.loop).result(PATIENCE)
        if self.failure is not None:
            raise self.failure
        self.opened.append(Model(stored.entry.name, num_ctx))
        return self.opened[-1]

    def measure(self, stored, num_ctx):
        taken = sum(each.nbytes for each in self.opened if not each.closed)
        return MemoryEstimate(10, self.memory - taken, self.memory)


def run(test, machine=None, **settings):
    machine = machine or Machine()

    async def main():
        machine.loop = asyncio.get_running_loop()
        settings.setdefault("keep_seconds", 60)
        settings.setdefault("most", 3)
        pool = ModelPool(machine, measure=machine.measure, **settings)
        await asyncio.wait_for(test(pool, machine), PATIENCE)

    asyncio.run(main())


def named(name):
    return Stored(Entry(name))


def names(pool):
    return [each.stored.entry.name for each in pool.list_models()]


async def used(pool, *asked, **more):
    for name in asked:
        async with pool.using(named(name), **more):
            pass


@asynccontextmanager
async def busy(pool, name):
    async with pool.using(named(name)) as found:
        yield found


def test_what_was_used_longest_ago_goes_where_there_are_too_many():
    async def test(pool, machine):
        await used(pool, "a", "b", "a", "c")
        assert names(pool) == ["a", "c"]
        assert [(each.name, each.closed) for each in machine.opened] == [
            ("a", False), ("b", True), ("c", False)
        ]  # fmt: skip

    run(test, most=2)


def test_an_idle_model_goes_before_one_that_was_used_earlier_and_works():
    async def test(pool, _):
        async with busy(pool, "a"):
            await used(pool, "b", "c")
            assert names(pool) == ["a", "c"]

    run(test, most=2)


def test_models_go_where_memory_does_not_suffice():
    async def test(pool, _):
        await used(pool, "a", "b", "c")
        assert names(pool) == ["b", "c"]

    run(test, Machine(memory=25))


def test_what_never_fits_is_told_and_drives_nothing_out():
    async def test(pool, machine):
        await used(pool, "a")
        machine.memory = 9
        with pytest.raises(OutOfMemory, match="b: needs about 10 B, the device has 9 B"):
            await used(pool, "b")
        assert names(pool) == ["a"]

    run(test)


def test_a_context_that_cannot_be_leaves_the_model_as_it_is():
    async def test(pool, machine):
        await used(pool, "a")
        with pytest.raises(OptionError, match="num_ctx: -1, needs at least 1"):
            await used(pool, "a", num_ctx=-1)
        machine.memory = 9
        with pytest.raises(OutOfMemory, match="a: needs about 10 B, the device has 9 B"):
            await used(pool, "a", num_ctx=10**9)
        assert [each.closed for each in machine.opened] == [False]

    run(test)


def test_a_model_that_has_to_go_finishes_its_requests_and_takes_no_others():
    async def test(pool, machine):
        order = []

        async def ask(name):
            async with pool.using(named(name)) as found:
                order.append((name, found.model))

        async with busy(pool, "a") as first:
            new = asyncio.create_task(ask("b"))
            await asyncio.sleep(0.05)
            again = asyncio.create_task(ask("a"))
            await asyncio.sleep(0.05)
            assert order == []
            assert not first.model.closed
        await asyncio.gather(new, again)
        assert [name for name, _ in order] == ["b", "a"]
        assert first.model.closed
        assert len(machine.opened) == 3

    run(test, most=1)


def test_who_only_looks_takes_any_context():
    async def test(pool, machine):
        await used(pool, "a", num_ctx=128)
        async with pool.using(named("a"), "any") as loaded:
            assert loaded.model.num_ctx == 128
        assert len(machine.opened) == 1

    run(test)


def test_a_request_for_a_loaded_model_does_not_wait_for_another_to_load():
    async def test(pool, machine):
        await used(pool, "a")
        machine.hold = asyncio.Event()
        loading = asyncio.create_task(used(pool, "b"))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(used(pool, "a"), PATIENCE)
        assert not loading.done()
        machine.hold.set()
        await loading

    run(test)


def test_another_context_and_another_file_load_again():
    async def test(pool, machine):
        await used(pool, "a")
        await used(pool, "a", num_ctx=128)
        assert [each.num_ctx for each in machine.opened] == [64, 128]
        async with pool.using(Stored(Entry("a", digest="b")), 128):
            assert len(machine.opened) == 3

    run(test)


def test_a_context_that_one_client_asks_for_is_not_everybodys():
    async def test(pool, machine):
        await used(pool, "a", num_ctx=128)
        await asyncio.gather(*(used(pool, "a") for _ in range(3)))
        await used(pool, "a", num_ctx=64)  # which it has by itself
        await used(pool, "a")
        assert [each.num_ctx for each in machine.opened] == [128, 64]

    run(test)


def test_a_context_that_became_another_is_not_loaded_again():
    async def test(pool, machine):
        async with pool.using(named("a"), 128) as found:
            found.model.num_ctx = 100
        await used(pool, "a", num_ctx=128)
        assert len(machine.opened) == 1

    run(test)


def test_who_unloads_a_model_waits_for_nobody_and_holds_up_nobody():
    async def test(pool, machine):
        expiring = asyncio.create_task(pool.expire())
        async with busy(pool, "a"):
            await asyncio.wait_for(pool.unload("a"), PATIENCE)
            await asyncio.wait_for(used(pool, "b"), PATIENCE)
            assert names(pool) == ["a", "b"]
        while "a" in names(pool):
            await asyncio.sleep(0.01)
        await pool.unload("b")
        assert names(pool) == []
        expiring.cancel()

    run(test)


def test_a_lost_model_is_loaded_again_by_itself_while_its_requests_still_fail():
    async def test(pool, machine):
        expiring = asyncio.create_task(pool.expire())
        async with busy(pool, "a") as found:
            found.keep_seconds = 5
            found.set_lora_scales([0.5])
            found.model.gone = BackendError("gone")
            while len(machine.opened) < 2:
                await asyncio.sleep(0.01)
        await used(pool, "a")
        assert len(machine.opened) == 2
        assert pool.list_models()[0].keep_seconds == 5
        assert machine.opened[1].scales == pool.list_models()[0].lora_scales == [0.5]
        expiring.cancel()

    run(test)


def test_scales_of_adapters_stay_when_a_request_has_a_model_loaded_again():
    async def test(pool, machine):
        async with busy(pool, "a") as found:
            found.set_lora_scales([0.5])
            found.model.gone = BackendError("gone")
        await used(pool, "a")
        await used(pool, "a", num_ctx=128)
        assert [each.scales for each in machine.opened] == [[0.5]] * 3

    run(test)


def test_a_lost_model_that_cannot_be_loaded_again_is_left_alone(caplog):
    # A command that ran in this process may have set another level.
    caplog.set_level(logging.WARNING, "wgpu_backend.server")

    async def test(pool, machine):
        expiring = asyncio.create_task(pool.expire())
        async with busy(pool, "a") as found:
            machine.failure = BackendError("still gone")
            found.model.gone = BackendError("gone")
        while "a: not loaded again: still gone" not in caplog.text:
            await asyncio.sleep(0.01)
        assert not pool.list_models()
        with pytest.raises(BackendError, match="still gone"):
            await used(pool, "a")
        machine.failure = None
        await used(pool, "a")
        expiring.cancel()

    run(test)


def test_a_model_goes_when_nobody_asks_for_it_but_not_under_a_request():
    async def test(pool, machine):
        expiring = asyncio.create_task(pool.expire())
        async with pool.using(named("a"), keep_seconds=0):
            await asyncio.sleep(0.3)
            assert names(pool) == ["a"]
        while not machine.opened[0].closed:
            await asyncio.sleep(0.01)
        assert not pool.list_models()
        expiring.cancel()

    run(test)


def test_a_client_that_goes_while_a_model_loads_leaves_it_to_others():
    async def test(pool, machine):
        machine.hold = asyncio.Event()
        asking = asyncio.create_task(used(pool, "a"))
        await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        machine.hold.set()
        await used(pool, "a")
        assert len(machine.opened) == 1
        assert [each.users for each in pool.list_models()] == [0]

    run(test)
