"""Locks in Kubernetes Leases: for coarse locks and leaders, where there is a cluster and nothing else."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from grelmicro_fastapi.coordination.clock import Clock
from grelmicro_fastapi.coordination.store import Scope
from grelmicro_fastapi.errors import SettingsValidationError
from grelmicro_fastapi.providers.base import Provider
from grelmicro_fastapi.providers.kubernetes_line import ACCOUNT, Client, Line
from grelmicro_fastapi.providers.kubernetes_store import KubernetesStore
from grelmicro_fastapi.settings import read_env, seconds, text

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_OPTIONS = {"prefix", "kubeconfig", "context"}


class KubernetesProvider(Provider):
    """Keeps each lock in a Lease (`coordination.k8s.io/v1`) of its own. Its scope is the cluster.

    `namespace`, else `KUBE_NAMESPACE`, else that of the pod, else "default". Applications that share a namespace need
    prefixes that differ. In a pod its service account is used, elsewhere the kubeconfig: `kubeconfig` (a path), else
    `KUBECONFIG`, else that of the home directory, with `context` or its current one. `timeout` is how many seconds one
    call to the API server may take; it must be well below the shortest lease.

    Raises `SettingsValidationError` for a value that cannot be, and when opened if no API server is configured.
    """

    name = "kubernetes"
    scope = Scope.CLUSTER

    def __init__(
        self,
        namespace: str | None = None,
        *,
        prefix: str = "",
        kubeconfig: str | None = None,
        context: str | None = None,
        timeout: float = 2.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock=clock)
        for keyword, value in (("namespace=", namespace), ("kubeconfig=", kubeconfig), ("context=", context)):
            text(keyword, value, needed=False)
        text("prefix=", prefix)
        given = read_env("KUBE_NAMESPACE") if namespace is None else namespace
        if given is not None and not _NAMESPACE.match(given):
            source = "KUBE_NAMESPACE" if namespace is None else "namespace="
            raise SettingsValidationError(f"{source} must be a namespace: a-z, 0-9 and -, at most 63 characters")
        if seconds("timeout=", timeout, least=0.01) > 60:
            raise SettingsValidationError("timeout= must be a number of seconds between 0.01 and 60")
        if len(prefix) > 200 or not prefix.isprintable():
            raise SettingsValidationError("prefix= has at most 200 characters, all of them printable")
        self.namespace = given
        self.prefix = prefix
        self._kubeconfig = kubeconfig
        self._context = context
        self._timeout = timeout
        self._client: Client | None = None
        self._account: Path = ACCOUNT

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> Self:
        """Make the provider of `kubernetes://`, `kubernetes://namespace` or `kubernetes://namespace?prefix=shop:`.

        `kubeconfig=` and `context=` may be given in the same way.
        """
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        if not set(options) <= _OPTIONS or parts.path.strip("/"):
            raise SettingsValidationError(
                f"a Kubernetes URL is kubernetes://namespace?option=value, its options {', '.join(sorted(_OPTIONS))}"
            )
        config, context = options.get("kubeconfig"), options.get("context")
        prefix = options.get("prefix", "")
        return cls(parts.netloc or None, prefix=prefix, kubeconfig=config, context=context, clock=clock)

    @classmethod
    def from_client(
        cls,
        client: Client,
        namespace: str | None = None,
        *,
        prefix: str = "",
        timeout: float = 2.0,
        clock: Clock | None = None,
    ) -> Self:
        """Use the session of a `kubernetes_asyncio.client.ApiClient`, which is never closed here.

        It serves the loop that it was made on, and no other.
        """
        if not hasattr(client, "rest_client"):
            raise SettingsValidationError(
                "KubernetesProvider.from_client takes a kubernetes_asyncio.client.ApiClient, and no "
                f"{type(client).__name__}"
            )
        provider = cls(namespace, prefix=prefix, timeout=timeout, clock=clock)
        provider._client = client
        return provider

    def _store(self) -> KubernetesStore:
        return self._store_at(None)

    def _store_at(self, now: Callable[[], int] | None) -> KubernetesStore:
        line = Line(self.namespace, self._kubeconfig, self._context, self._client, self._account)
        return KubernetesStore(line, self.prefix, self.clock, timeout=self._timeout, now=now)
