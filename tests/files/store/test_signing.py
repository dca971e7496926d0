"""Signing in at a registry: the key's file, its signatures, and the token that they bring."""

import base64
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.files.store.registry import Registry
from tests.files.store.test_push import name, pusher, registry, store, whole  # noqa: F401
from wgpu_backend.errors import StoreError
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.push import Key
from wgpu_backend.files.store.store import Store

Ed25519PrivateKey = pytest.importorskip(
    "cryptography.hazmat.primitives.asymmetric.ed25519", reason="the extra [push] is not installed"
).Ed25519PrivateKey

# RFC 8032, section 7.1: secret, public, message, signature.
KNOWN = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e3970"
        "1cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613"
        "d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]
SECRET, PUBLIC = (bytes.fromhex(half) for half in KNOWN[0][:2])
KEY = Key(Ed25519PrivateKey.from_private_bytes(SECRET))


def packed(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data


def written(path: Path, cipher: bytes = b"none") -> Path:
    """The key as OpenSSH writes it."""
    public = packed(b"ssh-ed25519") + packed(PUBLIC)
    private = bytes(8) + public + packed(SECRET + PUBLIC) + packed(b"me") + b"\1\2\3"
    parts = packed(cipher) + packed(b"none") + packed(b"") + (1).to_bytes(4)
    data = b"openssh-key-v1\0" + parts + packed(public) + packed(private)
    text = base64.encodebytes(data).decode()
    mark = "-----{} OPENSSH PRIVATE KEY-----\n"
    path.write_text(mark.format("BEGIN") + text + mark.format("END"))
    return path


@pytest.mark.parametrize(("secret", "public", "message", "signature"), KNOWN)
def test_signatures_are_those_of_the_standard(secret, public, message, signature):
    key = Key(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)))
    assert base64.b64decode(key.name)[-32:].hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == signature


def test_a_key_is_read_from_its_file(tmp_path):
    assert Key.read(written(tmp_path / "key")).name == KEY.name
    with pytest.raises(StoreError, match="without a passphrase"):
        Key.read(written(tmp_path / "locked", b"aes256-ctr"))
    (tmp_path / "torn").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END")
    for wrong, told in (("torn", "needs an ed25519 key"), ("none", "No such file")):
        with pytest.raises(StoreError, match=told):
            Key.read(tmp_path / wrong)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")
def test_a_key_of_openssh_is_read(tmp_path):
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    assert Key.read(path).name == path.with_suffix(".pub").read_text().split()[1]


def test_a_registry_that_asks_gets_a_signature_and_the_model(
    registry: Registry,  # noqa: F811
    store: Store,  # noqa: F811
    name: ModelName,  # noqa: F811
    tmp_path: Path,
):
    registry.fault = "account"
    pusher(store, key=written(tmp_path / "key")).push(name)
    assert whole(registry, store, name)
    assert len(registry.proofs) == 2  # the first token is over before the first chunk
    url, proof = registry.proofs[0]
    assert "scope=a%3Apush&scope=b%3Apull&service=reg&ts=" in url
    nothing = base64.b64encode(hashlib.sha256().hexdigest().encode()).decode()
    public, _, signature = proof.partition(":")
    assert public == KEY.name
    assert base64.b64decode(signature) == KEY.sign(f"GET,{url},{nothing}".encode())


def test_a_registry_gets_no_more_than_it_may(
    registry: Registry,  # noqa: F811
    store: Store,  # noqa: F811
    name: ModelName,  # noqa: F811
    tmp_path: Path,
):
    registry.fault = "realm elsewhere"
    with pytest.raises(
        StoreError, match=r"sends clients to localhost:\d+ for a token, needs its own"
    ):
        pusher(store, key=written(tmp_path / "key")).push(name)
    registry.fault = "account"
    for key, told in ((tmp_path / "none", "which is not there"), (None, "there is no key")):
        with pytest.raises(StoreError, match=told):
            pusher(store, key=key).push(name)
    assert registry.proofs == []


def test_without_cryptography_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(StoreError, match=r"pip install '\.\[push\]'"):
        Key.read(written(tmp_path / "key"))
