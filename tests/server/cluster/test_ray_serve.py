"""The application for Ray Serve: its arguments, and the server of a replica."""

import sys
from types import ModuleType

import pytest
from starlette.testclient import TestClient

from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.ray_serve import app, make_asgi_app


class Serve(ModuleType):
    """What the application needs of `ray.serve`."""

    def __init__(self):
        super().__init__("ray.serve")
        self.options = {}

    def ingress(self, build):
        self.build = build
        return lambda: "ingress"

    def deployment(self, made, **options):
        assert made == "ingress"
        self.options = options
        return self

    def bind(self):
        return "bound"


@pytest.fixture
def serve(monkeypatch):
    made = Serve()
    monkeypatch.setitem(sys.modules, "ray.serve", made)
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    return made


def test_replicas_are_started_by_requests_in_progress(serve):
    assert app({"max_replicas": "3", "ongoing_requests": 2}) == "bound"
    assert serve.options["autoscaling_config"] == {
        "min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 2,
    }  # fmt: skip
    assert serve.options["ray_actor_options"]["resources"] == {"wgpu_adapter": 1}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"replicas": 2}, "argument 'replicas', needs one of device"),
        ({"max_replicas": 0}, "max_replicas is 0, needs a whole number from 1"),
        ({"num_ctx": "many"}, "num_ctx is 'many', needs a whole number from 1"),
    ],
)
def test_wrong_arguments_are_named(serve, arguments, named):
    with pytest.raises(UsageError, match=named):
        app(arguments)


def test_a_replica_is_a_server_that_answers_local_names_alone(serve, monkeypatch, tmp_path):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    monkeypatch.delenv("WGPU_BACKEND_API_KEY", raising=False)
    app({"device": "cpu", "num_ctx": 256, "parallel": 2})
    with TestClient(serve.build(), base_url="http://localhost") as client:
        assert "story:latest" in [m["name"] for m in client.get("/api/tags").json()["models"]]
    with TestClient(make_asgi_app("cpu", 256, 2), base_url="http://elsewhere") as client:
        assert client.get("/api/tags").status_code == 403
    opened = make_asgi_app("cpu", 256, 2, allow_anyone=True)
    with TestClient(opened, base_url="http://elsewhere") as client:
        assert client.get("/api/tags").status_code == 200
