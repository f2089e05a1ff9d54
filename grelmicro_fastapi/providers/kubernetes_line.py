"""The way to an API server: where it is, and who we are there.

kubernetes-asyncio reads kubeconfigs and service accounts, and makes the HTTP session.
"""

import os
from pathlib import Path
from typing import Any, Protocol

try:
    from kubernetes_asyncio import config as _config
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.client.rest import RESTClientObject
    from kubernetes_asyncio.config.config_exception import ConfigException
except ImportError as missing:
    raise ImportError(
        "KubernetesProvider needs kubernetes-asyncio: pip install grelmicro-fastapi[kubernetes]"
    ) from missing

from grelmicro_fastapi.errors import SettingsValidationError

config: Any = _config  # half of it has no types

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account."""


class Client(Protocol):
    """What is needed of a `kubernetes_asyncio.client.ApiClient`."""

    configuration: Any
    rest_client: Any


class Line:
    """One loop's session with one API server. `account` is the folder of the pod's service account."""

    def __init__(
        self,
        namespace: str | None,
        kubeconfig: str | None,
        context: str | None,
        client: Client | None = None,
        account: Path = ACCOUNT,
    ) -> None:
        self.namespace = namespace or ""
        self._kubeconfig = kubeconfig
        self._context = context
        self._client = client
        self._account = account
        self._settings: Any = None
        self._rest: Any = None

    @property
    def opened(self) -> bool:
        """May it be used?"""
        return self._rest is not None

    async def open(self) -> None:
        """Find out where to, without going there. Raises `SettingsValidationError` if nothing says where."""
        if self.opened:
            return
        await self.introduce()
        if not self.namespace:
            self.namespace = self._own_namespace() or "default"
        self._rest = self._client.rest_client if self._client else RESTClientObject(self._settings)

    async def close(self) -> None:
        """Give the session back, unless it was borrowed."""
        rest, self._rest = self._rest, None
        if rest and not self._client:
            await rest.close()

    async def introduce(self) -> None:
        """Read anew who we are: tokens are replaced while we run."""
        if self._client:
            self._settings = self._client.configuration
            return
        settings: Any = Configuration()
        try:
            if self._in_cluster():
                files = {"token_filename": self._account / "token", "cert_filename": self._account / "ca.crt"}
                config.load_incluster_config(settings, **{name: str(path) for name, path in files.items()})
            else:
                await config.load_kube_config(self._kubeconfig, self._context, settings, persist_config=False)
        except (ConfigException, OSError, ValueError, TypeError) as error:
            # What the driver says of it may quote the file.
            raise SettingsValidationError(
                f"no Kubernetes API server is configured ({type(error).__name__}): run in a pod that has a service "
                "account, set KUBECONFIG, or pass kubeconfig= and context="
            ) from None
        self._settings = settings

    async def request(self, method: str, path: str, *, headers: dict[str, str], **options: Any) -> Any:
        """Send, and return the response as soon as its head is there. The caller releases it."""
        settings, rest = self._settings, self._rest
        if token := await settings.get_api_key_with_prefix("BearerToken"):
            # A file with a token often ends with a line break, which no header may have.
            headers = headers | {"Authorization": token.strip()}
        if rest.server_hostname:
            options["server_hostname"] = rest.server_hostname
        if rest.proxy:
            options |= {"proxy": rest.proxy, "proxy_headers": rest.proxy_headers}
        return await rest.pool_manager.request(method, settings.host + path, headers=headers, **options)

    def _in_cluster(self) -> bool:
        told = self._kubeconfig or self._context or os.environ.get("KUBECONFIG")
        return not told and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))

    def _own_namespace(self) -> str:
        if self._client or not self._in_cluster():
            return ""
        try:
            return (self._account / "namespace").read_text().strip()
        except OSError:
            return ""
