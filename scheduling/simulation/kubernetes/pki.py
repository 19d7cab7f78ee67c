"""The certificates of a simulated cluster, and the kubeconfig of its administrator.

kubectl sends tokens over TLS only. The authority is made once for a state directory; the certificate of the server is
made at every start, because its address may have changed.
"""

from __future__ import annotations

import ipaddress
import json
import os
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID_FOR = timedelta(days=3650)


def create_server_certificate(directory: Path, bind: str) -> tuple[Path, Path]:
    """Write the authority and a certificate for the address; returns the files of the certificate and its key."""
    directory.mkdir(mode=0o700, exist_ok=True)
    authority, authority_key = _authority(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName("localhost"), x509.DNSName("kubernetes"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(bind)))
    except ValueError:
        names.append(x509.DNSName(bind))
    builder = _builder("kube-apiserver", authority.subject, key.public_key())
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = builder.add_extension(issuer, critical=False).sign(authority_key, hashes.SHA256())
    _write(directory / "server.key", _key_text(key))
    _write(directory / "server.crt", certificate.public_bytes(serialization.Encoding.PEM))
    return directory / "server.crt", directory / "server.key"


def write_kubeconfig(state: Path, address: str, token: str) -> Path:
    """Write the kubeconfig of the administrator. It is JSON, which is also YAML."""
    authority = b64encode((state / "pki" / "ca.crt").read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "simulated",
        "clusters": [{"name": "simulated", "cluster": {"server": address, "certificate-authority-data": authority}}],
        "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "admin"}}],
        "users": [{"name": "admin", "user": {"token": token} if token else {}}],
    }
    path = state / "kubeconfig"
    _write(path, json.dumps(config, indent=1).encode())
    return path


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority of this state directory, made if there is none."""
    certificate_file, key_file = directory / "ca.crt", directory / "ca.key"
    if certificate_file.exists() and key_file.exists():
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(certificate_file.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "simulated-kubernetes")])
    builder = _builder("simulated-kubernetes", name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    _write(key_file, _key_text(key))
    _write(certificate_file, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID_FOR)
    )


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, in one step."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    temporary.replace(path)
