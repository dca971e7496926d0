"""What each script here does: try features one by one, and print a line for each."""

import base64
import json
import sys
import time
import traceback
from pathlib import Path
from urllib.request import urlopen


def url():
    """Where the server is: the script's first argument."""
    return sys.argv[1]


def pull_name():
    """A model of a registry at this machine: the second argument."""
    return sys.argv[2]


def picture(colour):
    """The path of a picture with a square, ``red`` or ``blue``: in the third argument's folder."""
    return Path(sys.argv[3]) / f"{colour}.png"


def encoded_picture(colour):
    """The same in base64."""
    return base64.b64encode(picture(colour).read_bytes()).decode()


def try_all(features) -> None:
    """Call functions by their names, and print ``name: ok``, or what went wrong."""
    for feature in features:
        name = feature.__name__
        try:
            feature()
            print(f"{name}: ok")
        except Exception:
            lines = traceback.format_exc().strip().splitlines()
            print(f"{name}: {lines[-1]} at {lines[-3].strip()}")


def refused(call, kind, status):
    """Require an error of a client's own kind, and give it."""
    found = None
    try:
        call()
    except kind as error:
        found = error
    assert found is not None, "no error"
    assert found.status_code == status, found
    return found


def idle(slots) -> None:
    """Wait until no slot of the server is in use: what was cancelled has ended."""
    for _ in range(100):
        if not any(slot["is_processing"] for slot in slots()):
            return
        time.sleep(0.05)
    raise AssertionError("something is made still")


def slots():
    """Slots of the server."""
    with urlopen(f"{url()}/slots") as response:
        return json.load(response)


def width() -> int:
    """Of the vectors of ``tale``, as the server shows the model."""
    with urlopen(f"{url()}/api/show", json.dumps({"model": "tale"}).encode()) as response:
        facts = json.load(response)["model_info"]
    return facts[f"{facts['general.architecture']}.embedding_length"]
