"""Long work of the library keeps nothing else waiting."""

import asyncio
import threading
from contextlib import AsyncExitStack, aclosing

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from tests.patience import PATIENCE
from wgpu_backend.server.api.ollama.models import _stream_progress

PULLS = 40  # more than asyncio has threads


def test_models_are_loaded_while_many_pulls_wait_for_their_registries():
    go_on = threading.Event()

    def pull(tell, _stop):
        tell({"status": "pulling manifest"})
        go_on.wait(PATIENCE)

    async def main():
        async with AsyncExitStack() as stack:
            stack.callback(go_on.set)
            pulls = [
                await stack.enter_async_context(aclosing(_stream_progress(pull)))
                for _ in range(PULLS)
            ]
            stack.callback(go_on.set)  # the first thing at the end
            assert [await anext(each) for each in pulls] == [{"status": "pulling manifest"}] * PULLS
            return await asyncio.wait_for(asyncio.to_thread(lambda: "loaded"), PATIENCE / 2)

    assert asyncio.run(main()) == "loaded"
